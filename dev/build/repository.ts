import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';

/** The root of this checkout. */
export const ROOT = resolve(import.meta.dirname, '../..');

/**
 * The public address of the repository without a slash at its end, from `repository` in `package.json`. A fork that
 * publishes changes it there, and a test names each document, workflow and package that has another one.
 */
export const REPOSITORY: string = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8'))
  .repository.url.replace(/^git\+/, '')
  .replace(/\.git$/, '');

/**
 * The time of what is built, so that two builds of one commit are alike (reproducible-builds.org). In
 * seconds.
 */
export const sourceDate = (): number =>
  Number(
    process.env.SOURCE_DATE_EPOCH ||
      execFileSync('git', ['log', '-1', '--format=%ct'], { cwd: ROOT, encoding: 'utf8' }),
  );
