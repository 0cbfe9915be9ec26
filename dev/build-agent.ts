import { join } from 'node:path';
import { bundleAgent } from './stack/agent-program.ts';
import { ROOT } from './stack/repository.ts';

/** `npm run build`: bundles the agent for installation on a database host. */
await bundleAgent(join(ROOT, 'dist/branchgate-agent.mjs'));
