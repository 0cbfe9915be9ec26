import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['direct connections', 'pooled connections', 'stalled logins', 'wrong passwords']);
