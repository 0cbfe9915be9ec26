import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['pooled connections', 'wrong passwords']);
