import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { firstByDay } from '../support/nightly.ts';

describeAttacks(
  firstByDay(6, [
    'memory',
    'transaction ids',
    'old transaction',
    'abandoned statements',
    'slow views',
    'dropped branches',
    'large replies',
  ]),
);
