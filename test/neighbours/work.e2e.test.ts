import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { firstByDay } from '../support/nightly.ts';

describeAttacks(
  firstByDay(5, [
    'memory',
    'transaction ids',
    'old transaction',
    'abandoned statements',
    'slow views',
    'large replies',
  ]),
);
