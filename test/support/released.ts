import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { bundleAgent } from '../../dev/build/agent.ts';
import { ROOT } from '../../dev/build/repository.ts';
import type { Api } from './api.ts';
import type { purgeBranch } from './records/jobs.ts';
import { oncePerRun } from './run-folder.ts';
import type { Stack, startStack } from './stack/stack.ts';

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

/** The whole stack of the last release, with the helpers of its own tests, which know its API. */
export interface ReleasedStack {
  stack: Stack;
  api: Api;
  /** Deletes a branch and waits until its database is gone. */
  purgeBranch: typeof purgeBranch;
}

export async function startReleasedStack(env: Record<string, string>): Promise<ReleasedStack> {
  const support = join(await releasedSources(), 'test/support');
  const { startStack: start }: { startStack: typeof startStack } = await import(join(support, 'stack.ts'));
  const { Api: Client }: { Api: typeof Api } = await import(join(support, 'api.ts'));
  const { dropBranch }: { dropBranch: typeof purgeBranch } = await import(join(support, 'jobs.ts'));
  const stack = await start({ env, restarts: false });
  return { stack, api: new Client(stack.url, await stack.token()), purgeBranch: dropBranch };
}
