/** Whether this run takes the whole matrix of faults: `npm run test:nightly`. */
export const IS_NIGHTLY = process.env.NIGHTLY === '1';

/** The cases of a table that this run takes: all by night, the first `count` by day. */
export const firstByDay = <T>(count: number, cases: readonly T[]): T[] =>
  IS_NIGHTLY ? [...cases] : cases.slice(0, count);
