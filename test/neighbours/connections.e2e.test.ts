import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['pooled connections', 'stalled logins', 'wrong passwords']);
