import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { documentOf } from '../cli/document.ts';
import { createProgram } from '../cli/program.ts';
import { ROOT } from './build/repository.ts';

/** `npm run cli:docs`: writes the page about the command line from its commands. */
writeFileSync(join(ROOT, 'docs/cli.md'), documentOf(createProgram('')));
