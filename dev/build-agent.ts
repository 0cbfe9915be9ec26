import { join } from 'node:path';
import { bundleAgent } from './stack/agent-program.ts';
import { ROOT } from './stack/repository.ts';

/** `npm run build`: the agent as it is put on a database host. */
await bundleAgent(join(ROOT, 'dist/branchgate-agent.mjs'));
