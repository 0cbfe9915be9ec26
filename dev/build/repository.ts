import { execFileSync } from 'node:child_process';
import { resolve } from 'node:path';

/** The root of this checkout. */
export const ROOT = resolve(import.meta.dirname, '../..');

/**
 * The time of what is built, so that two builds of one commit are alike (reproducible-builds.org). In
 * seconds.
 */
export const sourceDate = (): number =>
  Number(
    process.env.SOURCE_DATE_EPOCH ||
      execFileSync('git', ['log', '-1', '--format=%ct'], { cwd: ROOT, encoding: 'utf8' }),
  );
