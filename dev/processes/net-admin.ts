import type { OsUser } from './os-user.ts';

/** A program that root starts as `user` with CAP_NET_ADMIN, as the drop-in of the agent's unit does. */
export const withNetAdmin = (
  { uid, gid }: OsUser,
  { command, args }: { command: string; args: readonly string[] },
) => ({
  command: 'setpriv',
  args: [
    ...['--reuid', String(uid), '--regid', String(gid), '--clear-groups'],
    ...['--inh-caps', '+net_admin', '--ambient-caps', '+net_admin'],
    ...['--', command, ...args],
  ],
});
