/** Whether this run takes the whole matrix of faults: `npm run test:nightly`. */
export const IS_NIGHTLY = process.env.NIGHTLY === '1';
