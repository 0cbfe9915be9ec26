import { describe } from 'vitest';
import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { firewallHindrance } from '../support/neighbours/firewall.ts';

const hindrance = firewallHindrance();

describe.skipIf(hindrance !== null)(`with a packet filter${hindrance ? ` (${hindrance})` : ''}`, () => {
  describeAttacks(['silent sockets', 'direct connections', 'stalled logins'], () => ({ firewall: true }));
});
