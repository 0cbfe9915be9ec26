import { nft } from '../firewall/packet-filter.ts';
import type { AgentSettings } from '../process/settings.ts';

type Ports = Pick<AgentSettings, 'POOLER_PORT' | 'POOLER_STANDBY_PORT'>;

/** Which PgBouncer new connections to the pooled port reach. Open connections stay where they are. */
export interface Redirect {
  toStandby: () => Promise<unknown>;
  toMain: () => Promise<unknown>;
  /** Ends the connections that were redirected, so that there must be none. */
  remove: () => Promise<unknown>;
}

/** Separate from the table of the network rules, which is replaced as a whole. */
const tableOf = ({ POOLER_PORT }: Ports) => `inet branchgate_pooler_${POOLER_PORT}`;

/**
 * By NAT in the kernel, so that no connection is lost: PgBouncer itself cannot stop accepting without
 * disconnecting those that log in (docs/decisions/pooler.md).
 * @param run runs `nft` with this input
 */
export function packetRedirect(
  ports: Ports,
  run: (input: string) => Promise<unknown> = (input) => nft(['-f', '-'], input),
): Redirect {
  const table = tableOf(ports);
  return {
    toStandby: () => run(chains(table) + moveRule(table, ports)),
    // The chains stay: without any, the kernel forgets the redirected connections.
    toMain: () => run(chains(table)),
    remove: () => run(`add table ${table}\ndelete table ${table}\n`),
  };
}

/**
 * Adds what is missing, so that the hooks of redirected connections are never absent. `ct state` keeps the
 * kernel's memory of connections on while there is no redirection.
 */
const chains = (table: string) => `\
add table ${table}
add chain ${table} arriving { type nat hook prerouting priority -100; policy accept; }
add chain ${table} local { type nat hook output priority -100; policy accept; }
add chain ${table} move
flush table ${table}
add rule ${table} arriving ct state new jump move
add rule ${table} local ct state new jump move
`;

/**
 * Only the first packet counts: the kernel may see an open connection for the first time and take it for a
 * new one. Connections to the same port of another machine are not meant.
 */
const moveRule = (table: string, { POOLER_PORT, POOLER_STANDBY_PORT }: Ports) =>
  `add rule ${table} move fib daddr type local tcp dport ${POOLER_PORT} ` +
  `tcp flags & (fin | syn | rst | ack) == syn dnat to :${POOLER_STANDBY_PORT}\n`;
