import { isIPv6 } from 'node:net';
import { AGENT_ADDRESS } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';

export type Ports = Pick<AgentSettings, 'POSTGRES_PORT' | 'POOLER_PORT' | 'POOLER_STANDBY_PORT' | 'SQL_PORT'>;

/** The networks that are admitted. */
export interface Admitted {
  /** To the ports of both servers. */
  servers: readonly string[];
  /** To SQL_PORT. */
  sql: readonly string[];
}

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

/** The sets of addresses of each family. */
const SETS = { servers: 'admitted', sql: 'sql' } as const satisfies Record<keyof Admitted, string>;

/**
 * The whole table, which replaces an existing one in one transaction. It resets the first packet of a
 * connection to one of the ports from an address outside the sets, also over loopback. Open connections are not
 * looked at: the agent ends them. The agent's own connections to both servers are unix sockets, except those for clients
 * of SQL_PORT, whose address no packet from elsewhere can have. It bounds new connections to SQL_PORT itself.
 */
export function tableRuleset(ports: Ports, admitted: Admitted): string {
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
  set sql4 { type ipv4_addr; flags interval; auto-merge; }
  set sql6 { type ipv6_addr; flags interval; auto-merge; }
  set new4 { type ipv4_addr . inet_service; ${counting} }
  set new6 { type ipv6_addr . inet_service; ${counting} }
  chain input {
    type filter hook input priority filter - 5; policy accept;
    tcp dport { ${served.join(', ')} } tcp flags & (fin | syn | rst | ack) == syn jump begin${
      ports.SQL_PORT > 0
        ? `\n    tcp dport ${ports.SQL_PORT} tcp flags & (fin | syn | rst | ack) == syn jump begin_sql`
        : ''
    }
  }
  chain begin_sql {
    ip saddr != @sql4 reject with tcp reset
    ip6 saddr != @sql6 reject with tcp reset
  }
  chain begin {
    iifname "lo" ip saddr ${AGENT_ADDRESS} return
    ip saddr != @admitted4 reject with tcp reset
    ip6 saddr != @admitted6 reject with tcp reset
    add @new4 { ip saddr . tcp dport ${NEW_CONNECTIONS} } reject with tcp reset
    add @new6 { ip6 saddr & ffff:ffff:ffff:ffff:: . tcp dport ${NEW_CONNECTIONS} } reject with tcp reset
  }
}
${elements(table, admitted)}`;
}

/**
 * The table without a network, for the machine's own rules: all ports are closed until the agent has
 * started.
 */
export const baseRuleset = (ports: Ports): string => `\
# Include it in /etc/nftables.conf. Without it, the ports are open between the start of the machine and of the agent.
# To remove the packet filter: nft delete table ${tableName(ports)}
${tableRuleset(ports, { servers: [], sql: [] })}`;

/**
 * Replaces the admitted networks of an existing table in one transaction. The counts of new connections stay.
 */
export const networksRuleset = (ports: Ports, admitted: Admitted): string =>
  Object.values(SETS)
    .flatMap((set) => [`${set}4`, `${set}6`])
    .map((set) => `flush set ${tableName(ports)} ${set}\n`)
    .join('') + elements(tableName(ports), admitted);

const isV6 = (cidr: string) => isIPv6(cidr.split('/')[0] ?? '');

const elements = (table: string, admitted: Admitted): string =>
  (Object.keys(SETS) as (keyof Admitted)[])
    .flatMap((name) => [
      [`${SETS[name]}4`, admitted[name].filter((cidr) => !isV6(cidr))] as const,
      [`${SETS[name]}6`, admitted[name].filter(isV6)] as const,
    ])
    .filter(([, networks]) => networks.length > 0)
    .map(([set, networks]) => `add element ${table} ${set} { ${networks.join(', ')} }\n`)
    .join('');
