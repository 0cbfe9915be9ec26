import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { CommandError } from './exit-codes.ts';
import { readJson, writeJson } from './stored.ts';

/** `.branchgate.json`, which is committed: no secret is in it. */
export interface Link {
  url: string;
  /** ID of the project. */
  project: string;
}

const FILE = '.branchgate.json';

/** The link of this folder or of the nearest one above it. */
export function findLink(): Link | null {
  for (let folder = process.cwd(); ; folder = dirname(folder)) {
    const link = readJson<Link>(join(folder, FILE));
    if (link) return link;
    if (folder === dirname(folder)) return null;
  }
}

export function writeLink(link: Link): string {
  writeJson(FILE, link);
  return resolve(FILE);
}

/**
 * The file of the pinned branch: in the git folder of this worktree, which nobody commits. Null outside of
 * git.
 */
function pinFile(): string | null {
  try {
    const folder = execFileSync('git', ['rev-parse', '--git-dir'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return join(resolve(folder.trim()), 'branchgate-branch');
  } catch {
    return null;
  }
}

/** The branch that `checkout` has pinned in this worktree; null if there is none. */
export function pinnedBranch(): string | null {
  const file = pinFile();
  return file && existsSync(file) ? readFileSync(file, 'utf8').trim() : null;
}

/** @param branch null removes the pin */
export function pinBranch(branch: string | null): void {
  const file = pinFile();
  if (!file) throw new CommandError('usage', 'This folder is in no git repository. Give --branch instead.');
  if (branch === null) rmSync(file, { force: true });
  else writeFileSync(file, `${branch}\n`);
}
