import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['memory', 'transaction ids', 'old transaction', 'abandoned statements', 'slow views']);
