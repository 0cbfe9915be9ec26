import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['server log', 'failed statements', 'temporary files', 'notifications', 'write-ahead log']);
