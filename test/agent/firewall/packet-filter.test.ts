import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { hasTable, PacketFilter } from '../../../agent/firewall/packet-filter.ts';
import { baseRuleset, tableName } from '../../../agent/firewall/ruleset.ts';
import { AGENT_ADDRESS } from '../../../agent/postgres/connect.ts';
import { makeNamespace, type Namespace } from '../../support/firewall/namespace.ts';
import { firewallHindrance } from '../../support/neighbours/firewall.ts';

const DIRECT = 5999;
const POOLED = 6999;
const OTHER = 7999;
const SQL = 8999;
const PORTS = { POSTGRES_PORT: DIRECT, POOLER_PORT: POOLED, POOLER_STANDBY_PORT: 0, SQL_PORT: SQL };
const INSIDE = '127.0.0.1';
const OUTSIDE = '127.0.0.2';
const INSIDE6 = '2001:db8:1::1';
const OUTSIDE6 = '2001:db8:2::1';
const CIDRS = ['127.0.0.1/32', '2001:db8:1::/64', '10.0.0.0/8', '10.1.0.0/16'];
const RESET = 'ECONNREFUSED';
const toServers = (servers: readonly string[]) => ({ servers, sql: [] });
const hindrance = firewallHindrance();

describe.skipIf(hindrance !== null)(`the packet filter${hindrance ? ` (${hindrance})` : ''}`, () => {
  let namespace: Namespace;
  let filter: PacketFilter;
  beforeAll(async () => {
    namespace = await makeNamespace([`${INSIDE6}/128`, `${OUTSIDE6}/128`], [DIRECT, POOLED, OTHER, SQL]);
  });
  afterAll(() => namespace?.remove());
  beforeEach(() => {
    filter = new PacketFilter(PORTS);
  });

  async function outcomes(port: number): Promise<string[]> {
    const found: string[] = [];
    for (const from of [INSIDE, OUTSIDE, INSIDE6, OUTSIDE6]) found.push(await namespace.connect(from, port));
    return found;
  }

  test('admits exactly the published networks to both ports, and any to other ports', async () => {
    await filter.publish(toServers(CIDRS));
    for (const port of [DIRECT, POOLED]) expect(await outcomes(port)).toEqual(['in', RESET, 'in', RESET]);
    expect(await outcomes(OTHER)).toEqual(['in', 'in', 'in', 'in']);
    await filter.publish(toServers(['127.0.0.2/32']));
    expect(await outcomes(DIRECT)).toEqual([RESET, 'in', RESET, RESET]);
    await filter.publish(toServers(['0.0.0.0/0', '::/0', ...CIDRS]));
    expect(await outcomes(DIRECT)).toEqual(['in', 'in', 'in', 'in']);
    await filter.publish(toServers([]));
    expect(await outcomes(DIRECT)).toEqual([RESET, RESET, RESET, RESET]);
  });

  test('has networks of its own for SQL over WebSocket, whose sessions the agent opens from its own address', async () => {
    await filter.publish({ servers: [], sql: [`${OUTSIDE}/32`, '2001:db8:2::/64'] });
    expect(await outcomes(SQL)).toEqual([RESET, 'in', RESET, 'in']);
    expect(await outcomes(DIRECT)).toEqual([RESET, RESET, RESET, RESET]);
    expect(await namespace.connect(AGENT_ADDRESS, DIRECT)).toBe('in');
  });

  test('notices that someone has changed the table, and replaces it', async () => {
    await filter.publish(toServers(CIDRS));
    await namespace.connect(INSIDE, DIRECT);
    expect(await filter.isIntact()).toBe(true);
    const [family, table] = tableName(PORTS).split(' ') as [string, string];
    for (const change of [
      ['flush', 'set', family, table, 'admitted4'],
      ['flush', 'table', family, table],
      ['delete', 'table', family, table],
    ]) {
      namespace.nft(...change);
      expect(await filter.isIntact()).toBe(false);
      filter.forget();
      await filter.publish(toServers(CIDRS));
      expect(await filter.isIntact()).toBe(true);
      expect(await outcomes(DIRECT)).toEqual(['in', RESET, 'in', RESET]);
    }
    namespace.nft('delete', 'table', family, table);
    await filter.publish(toServers(['127.0.0.2/32']));
    expect(await outcomes(DIRECT)).toEqual([RESET, 'in', RESET, RESET]);
  });

  test('the table of an earlier process is replaced', async () => {
    await filter.publish(toServers(['127.0.0.2/32']));
    await new PacketFilter(PORTS).publish(toServers(CIDRS));
    expect(await outcomes(POOLED)).toEqual(['in', RESET, 'in', RESET]);
  });

  test('one address has a bounded number of new connections, which a change of rules does not renew', async () => {
    await filter.publish(toServers(CIDRS));
    const burst = async () => {
      let admitted = 0;
      while (admitted < 200 && (await namespace.connect(INSIDE, DIRECT)) === 'in') admitted += 1;
      return admitted;
    };
    const first = await burst();
    expect(first).toBeGreaterThanOrEqual(100);
    expect(first).toBeLessThan(200);
    await filter.publish(toServers([...CIDRS, '192.0.2.0/24']));
    expect(await burst()).toBeLessThan(50);
    expect(await namespace.connect(INSIDE, POOLED), 'the other port').toBe('in');
    expect(await namespace.connect(INSIDE6, DIRECT), 'another address').toBe('in');
  });

  test('a process without the capability says what is missing', async () => {
    await filter.publish(toServers(CIDRS));
    expect(await hasTable(PORTS)).toBe(true);
    await namespace.powerless(async () => {
      expect(await hasTable(PORTS)).toBe(null);
      await expect(filter.publish(toServers([]))).rejects.toMatchObject({
        code: 'RULES_NOT_APPLIED',
        message: expect.stringContaining('CAP_NET_ADMIN'),
      });
    });
    expect(await outcomes(DIRECT)).toEqual(['in', RESET, 'in', RESET]);
  });

  test('the printed base closes both ports, and the printed command removes it', async () => {
    namespace.nft(baseRuleset(PORTS).replaceAll(/^#.*$/gm, ''));
    expect(await outcomes(DIRECT)).toEqual([RESET, RESET, RESET, RESET]);
    const [, removal = ''] = /^# To .*: nft (.+)$/m.exec(baseRuleset(PORTS)) ?? [];
    namespace.nft(...removal.split(' '));
    expect(await hasTable(PORTS)).toBe(false);
    expect(await outcomes(DIRECT)).toEqual(['in', 'in', 'in', 'in']);
  });
});
