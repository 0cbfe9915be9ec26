import { Command } from 'commander';
import { GatewayRefusal } from '../link/host-certificate.ts';
import { readIdentity } from '../link/identity.ts';
import { CopyRefused, copyPrimary } from '../standby/base-copy.ts';
import { hindranceToOpen } from '../standby/gate.ts';
import { askMember, guardLease } from '../standby/primary-lease.ts';
import { readMember } from '../standby/stored-member.ts';
import { GatewayError, RefusedError, UsageError } from './exit-codes.ts';
import { becomeOwnerOf } from './owner.ts';
import { print, say } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

/** For both servers, before each of their starts. */
export const gateCommand = () =>
  new Command('gate')
    .description('Check whether the servers of this host may start, which those of a former primary may not')
    .option('--wait', 'wait until they may, instead of failing')
    .action(async ({ wait = false }: { wait?: boolean }) => {
      const tell = (reason: string) => say(`branchgate-agent: ${reason}`);
      const settings = readShellSettings();
      // Debian's unit of PostgreSQL begins as root, and the agent could not read what root writes.
      becomeOwnerOf(settings.STATE_DIR);
      const hindrance = await hindranceToOpen(settings, { wait, say: tell });
      if (hindrance !== null) throw new RefusedError(hindrance);
    });

/** What the agent runs as a process of its own. */
export const guardLeaseCommand = () =>
  new Command('guard-lease')
    .description('Renew the lease of this primary, and stop PostgreSQL when that fails, until none is needed')
    .action(() => guardLease(readShellSettings()));

/** What `join` and `rejoin` run as the agent's user. */
export const copyPrimaryCommand = () =>
  new Command('copy-primary')
    .description("Replace PostgreSQL's data by a copy of the primary's, on a standby or a former primary")
    .option('--check', 'only say whether this host is a standby without a copy')
    .action(async ({ check = false }: { check?: boolean }, command: Command) => {
      const settings = readShellSettings();
      const identity = await readIdentity(settings.STATE_DIR);
      if (!identity || !settings.GATEWAY_URL)
        throw new UsageError('this host is not enrolled, or GATEWAY_URL is missing: run `join` first');
      if (check) {
        const stored = readMember(settings);
        const isCopy = stored?.role === 'standby';
        const { role } = await askMember(settings, identity).catch(rethrow);
        print(command, { role, needed: role === 'standby' && !isCopy });
        return;
      }
      print(command, await copyPrimary(settings, identity).catch(rethrow));
    });

function rethrow(error: unknown): never {
  if (error instanceof CopyRefused) throw new RefusedError(error.message);
  throw error instanceof GatewayRefusal ? new GatewayError(error.message) : error;
}
