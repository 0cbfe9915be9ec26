import { describeAttacks } from '../support/neighbours/describe-attacks.ts';

describeAttacks(['advisory locks', 'locks on tables']);
