import { isIPv6 } from 'node:net';
import type { AgentSettings } from '../process/settings.ts';

export type Ports = Pick<AgentSettings, 'POSTGRES_PORT' | 'POOLER_PORT' | 'POOLER_STANDBY_PORT'>;

/**
 * New connections from one address (IPv6: one /64) to one port. Sockets that never log in end after 10 s
 * (PostgreSQL) and 15 s (PgBouncer), so one address has at most 250 of them: fewer than the pooler accepts
 * above those that are sold.
 */
const NEW_CONNECTIONS = 'limit rate over 10/second burst 100 packets';
/** Addresses of which new connections are counted; any more are not limited. */
const COUNTED_MAX = 65_535;

/** The table of one agent; several agents on a machine have different ports. */
export const tableName = ({ POSTGRES_PORT }: Pick<Ports, 'POSTGRES_PORT'>) =>
  `inet branchgate_${POSTGRES_PORT}`;

/** Sets whose elements the kernel adds. */
export const COUNTING_SETS = ['new4', 'new6'];

/**
 * The whole table, which replaces an existing one in one transaction. It resets the first packet of a
 * connection to either port from an address outside the sets, also over loopback. Open connections are not
 * looked at: the agent ends them. The agent's own connections to both servers are unix sockets.
 */
export function tableRuleset(ports: Ports, cidrs: readonly string[]): string {
  const table = tableName(ports);
  // A redirected connection arrives at the standby's port.
  const served = [ports.POSTGRES_PORT, ports.POOLER_PORT, ports.POOLER_STANDBY_PORT].filter(
    (port) => port > 0,
  );
  const counting = `size ${COUNTED_MAX}; flags dynamic,timeout; timeout 1m;`;
  return `\
table ${table} { }
delete table ${table}
table ${table} {
  set admitted4 { type ipv4_addr; flags interval; auto-merge; }
  set admitted6 { type ipv6_addr; flags interval; auto-merge; }
  set new4 { type ipv4_addr . inet_service; ${counting} }
  set new6 { type ipv6_addr . inet_service; ${counting} }
  chain input {
    type filter hook input priority filter - 5; policy accept;
    tcp dport { ${served.join(', ')} } tcp flags & (fin | syn | rst | ack) == syn jump begin
  }
  chain begin {
    ip saddr != @admitted4 reject with tcp reset
    ip6 saddr != @admitted6 reject with tcp reset
    add @new4 { ip saddr . tcp dport ${NEW_CONNECTIONS} } reject with tcp reset
    add @new6 { ip6 saddr & ffff:ffff:ffff:ffff:: . tcp dport ${NEW_CONNECTIONS} } reject with tcp reset
  }
}
${elements(table, cidrs)}`;
}

/**
 * The table without a network, for the machine's own rules: both ports are closed until the agent has
 * started.
 */
export const baseRuleset = (ports: Ports): string => `\
# Include it in /etc/nftables.conf. Without it, both ports are open between the start of the machine and of the agent.
# To remove the packet filter: nft delete table ${tableName(ports)}
${tableRuleset(ports, [])}`;

/**
 * Replaces the admitted networks of an existing table in one transaction. The counts of new connections stay.
 */
export const networksRuleset = (ports: Ports, cidrs: readonly string[]): string =>
  ['admitted4', 'admitted6'].map((set) => `flush set ${tableName(ports)} ${set}\n`).join('') +
  elements(tableName(ports), cidrs);

function elements(table: string, cidrs: readonly string[]): string {
  const isV6 = (cidr: string) => isIPv6(cidr.split('/')[0] ?? '');
  return [
    ['admitted4', cidrs.filter((cidr) => !isV6(cidr))] as const,
    ['admitted6', cidrs.filter(isV6)] as const,
  ]
    .filter(([, networks]) => networks.length > 0)
    .map(([set, networks]) => `add element ${table} ${set} { ${networks.join(', ')} }\n`)
    .join('');
}
