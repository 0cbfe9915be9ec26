import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, lstatSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { BRANCH_NAME_LENGTH, BranchName, MAIN_BRANCH } from '../shared/branch/branch-name.ts';
import { CommandError } from './exit-codes.ts';

/** The output of git, without the end of the line; null if it fails. */
export function git(...args: string[]): string | null {
  try {
    const stdio = ['ignore', 'pipe', 'ignore'] as const;
    return execFileSync('git', args, { encoding: 'utf8', stdio: [...stdio] }).replace(/\r?\n$/, '');
  } catch {
    return null;
  }
}

/** A path of this worktree's git folder. */
export const gitPath = (name: string): string => resolve(git('rev-parse', '--git-path', name) ?? name);

/** @throws CommandError outside of a worktree */
export function worktreeRoot(): string {
  const root = git('rev-parse', '--show-toplevel');
  if (root === null || root === '')
    throw new CommandError('usage', 'This folder is in no worktree of git. Run the command in one.');
  return root;
}

/** The records of `git install` in the configuration of the repository. */
export interface GitLink {
  url: string;
  /** ID of the project. */
  project: string;
  /** Name of the file with the URLs, at the root of each worktree. */
  file: string;
  /** Distinguishes the branches of this clone from those of others. */
  clone: string;
}

const KEYS = ['url', 'project', 'file', 'clone'] as const satisfies readonly (keyof GitLink)[];

/** Null if `git install` has not run here. */
export function readGitLink(): GitLink | null {
  const [url, project, file, clone] = KEYS.map((key) => git('config', '--local', `branchgate.${key}`));
  return url && project && file && clone ? { url, project, file, clone } : null;
}

export function writeGitLink(link: GitLink): void {
  for (const key of KEYS) git('config', '--local', `branchgate.${key}`, link[key]);
}

/** The git branch that is checked out; null for a detached HEAD and while git is in the middle of something. */
export function checkedOut(): string | null {
  const unfinished = [
    'rebase-merge',
    'rebase-apply',
    'MERGE_HEAD',
    'CHERRY_PICK_HEAD',
    'REVERT_HEAD',
    'BISECT_LOG',
  ];
  if (unfinished.some((name) => existsSync(gitPath(name)))) return null;
  return git('symbolic-ref', '--quiet', '--short', 'HEAD');
}

/** The branch that the remote has checked out, or the one that a new repository begins with. */
function isDefaultBranch(name: string): boolean {
  const remote = git('symbolic-ref', '--quiet', '--short', 'refs/remotes/origin/HEAD');
  return name === (remote?.replace(/^origin\//, '') ?? git('config', 'init.defaultBranch') ?? 'master');
}

const DIGITS = 8;

/**
 * The branch of a git branch: its name if that is one, else a slug of it with 8 digits of its SHA-256, so that
 * two names never share one. Null for `main`.
 * @param longest length that the project has room for
 */
export function slugOf(name: string, longest: number = BRANCH_NAME_LENGTH.max): string | null {
  if (name.toLowerCase() === MAIN_BRANCH) return null;
  const kept = longest - DIGITS - 1;
  if (BranchName.safeParse(name).success && name.length <= kept) return name;
  const slug = name
    .toLowerCase()
    .replace(/[^a-z0-9_-]/g, '-')
    .slice(0, kept);
  return `${slug}-${createHash('sha256').update(name).digest('hex').slice(0, DIGITS)}`;
}

export const branchOf = (name: string): string | null => (isDefaultBranch(name) ? null : slugOf(name));

/** The line by which a file is known as one of these. */
const HEAD_LINE = '# Written by branchgate. It has passwords: do not commit it.';

/**
 * Replaces the file at the root of the worktree, for its owner alone.
 * @throws CommandError for a link, and for a file that git would commit
 */
export function writeEnvironmentFile(root: string, file: string, lines: readonly string[]): void {
  const path = join(root, file);
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found && !found.isFile()) throw new CommandError('usage', `${file} is no plain file. Remove it.`);
  if (git('-C', root, 'ls-files', '--error-unmatch', '--', file) !== null)
    throw new CommandError('usage', `${file} is tracked by git, and would be committed. Name another file.`);
  if (git('-C', root, 'check-ignore', '--', file) === null)
    throw new CommandError(
      'usage',
      `${file} is not ignored by git. Add it to .gitignore or .git/info/exclude.`,
    );
  const temporary = `${path}.${process.pid}.new`;
  writeFileSync(temporary, [HEAD_LINE, ...lines, ''].join('\n'), { mode: 0o600, flag: 'wx' });
  renameSync(temporary, path);
}

/** Removes the file, unless git has it. */
export function removeEnvironmentFile(root: string, file: string): void {
  if (git('-C', root, 'ls-files', '--error-unmatch', '--', file) === null)
    rmSync(join(root, file), { force: true });
}
