import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { bundleAgent } from '../../dev/stack/agent-program.ts';
import { ROOT } from '../../dev/stack/repository.ts';
import { oncePerRun } from './run-folder.ts';

/** The commit of the last release. A release sets it to itself, with `PREVIOUS_VERSION` (CONTRIBUTING.md). */
const RELEASED = '36c6037';

const git = (...args: string[]) =>
  execFileSync('git', args, { cwd: ROOT, maxBuffer: 256 * 1024 * 1024, stdio: ['ignore', 'pipe', 'ignore'] });

/** Whether this copy of the repository has the release; a shallow one has no history. */
export function hasRelease(): boolean {
  try {
    git('cat-file', '-e', `${RELEASED}^{commit}`);
    return true;
  } catch {
    return false;
  }
}

/** The sources of the last release, with the packages of this one. @returns their folder */
export const releasedSources = (): Promise<string> =>
  oncePerRun('released', async (folder) => {
    mkdirSync(folder);
    execFileSync('tar', ['-x', '-C', folder], { input: git('archive', '--format=tar', RELEASED) });
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  });

/** The bundle of its agent. */
export const releasedAgent = (): Promise<string> =>
  oncePerRun('released-agent.mjs', async (file) => bundleAgent(file, await releasedSources()));
