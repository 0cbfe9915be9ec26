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
const RELEASED = 'e1a02ace';

/** Hashes of the link's schemas by version, as `test/shared/protocol/version.test.ts` has them. */
const HASHES = 'test/shared/protocol/version.test.ts';
const hashesIn = (text: string): Record<string, string> =>
  Object.fromEntries(
    [...text.matchAll(/^ {2}(\d+): '([0-9a-f]{64})',$/gm)].map(([, version = '', hash = '']) => [
      version,
      hash,
    ]),
  );

/** A state of the repository, as far as releases are concerned. */
export interface ReleaseState {
  packageVersion: string;
  protocol: number;
  hashes: Record<string, string>;
}

/** @param read returns a file of that state */
export const releaseState = (read: (path: string) => string): ReleaseState => ({
  packageVersion: JSON.parse(read('package.json')).version,
  protocol: Number(/PROTOCOL_VERSION = (\d+)/.exec(read('shared/protocol/version.ts'))?.[1]),
  hashes: hashesIn(read(HASHES)),
});

export const stateOfRelease = (): ReleaseState =>
  releaseState((path) => git('show', `${RELEASED}:${path}`).toString());

/**
 * What contradicts what about the last release. A section of the changelog is a release once it has a date.
 * @param previous `PREVIOUS_VERSION`
 */
export function releaseFaults(
  changelog: string,
  present: ReleaseState,
  released: ReleaseState,
  previous: number,
): string[] {
  const [newest, date] = /^## \[(\d+\.\d+\.\d+)\] - (\S+)$/m.exec(changelog)?.slice(1) ?? [];
  const isReleased = /^\d{4}-\d{2}-\d{2}$/.test(date ?? '');
  const edited = Object.keys(released.hashes).filter(
    (version) => present.hashes[version] !== released.hashes[version],
  );
  return [
    newest === present.packageVersion
      ? ''
      : `CHANGELOG.md has ${newest}, and package.json ${present.packageVersion}`,
    isReleased && released.packageVersion !== newest
      ? `CHANGELOG.md calls ${newest} released, and RELEASED is a commit of ${released.packageVersion}`
      : '',
    released.protocol === previous
      ? ''
      : `RELEASED speaks version ${released.protocol} of the link, and PREVIOUS_VERSION is ${previous}`,
    present.hashes[present.protocol] ? '' : `version ${present.protocol} of the link has no hash`,
    ...edited.map((version) => `the hash of version ${version} of the link was edited after its release`),
  ].filter(Boolean);
}

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
  const { startStack: start }: { startStack: typeof startStack } = await import(
    join(support, 'stack/stack.ts')
  );
  const { Api: Client }: { Api: typeof Api } = await import(join(support, 'api.ts'));
  const { purgeBranch: purge }: { purgeBranch: typeof purgeBranch } = await import(
    join(support, 'records/jobs.ts')
  );
  const stack = await start({ env, restarts: false });
  return { stack, api: new Client(stack.url, await stack.token()), purgeBranch: purge };
}
