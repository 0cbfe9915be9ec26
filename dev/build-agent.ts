import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { sha256Of } from '../agent/upgrade/program-file.ts';
import { bundleAgent } from './stack/agent-program.ts';
import { ROOT } from './stack/repository.ts';

const file = join(ROOT, 'dist/branchgate-agent.mjs');

/** `npm run build`: bundles the agent for installation on a database host, with its checksum for `upgrade`. */
await bundleAgent(file);
writeFileSync(`${file}.sha256`, `${sha256Of(readFileSync(file))}  ${basename(file)}\n`);
