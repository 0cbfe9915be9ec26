import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { connect as dial } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { nft } from '../../../agent/firewall/packet-filter.ts';
import {
  inAdminConsole,
  showClients,
  showMemory,
  withAdminConsoles,
} from '../../../agent/pooler/admin-console.ts';
import { pause, resume } from '../../../agent/pooler/pause.ts';
import { PoolerRestarts } from '../../../agent/pooler/restart.ts';
import { packetRedirect, type Redirect } from '../../../agent/pooler/restart-redirect.ts';
import { askForRestart, type Instance, readRestart } from '../../../agent/pooler/restart-state.ts';
import type { Log } from '../../../agent/process/log.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { RULE_FILES } from '../../../agent/servers/configuration.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot, knowsPeers, startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, Project } from '../../support/host/host-project.ts';
import { runPoolerUnits } from '../../support/host/pooler-units.ts';
import { firewallHindrance } from '../../support/neighbours/firewall.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const CLIENTS = IS_NIGHTLY ? 200 : 12;
/** 2.3 KB each. */
const FORGOTTEN_LOGINS = IS_NIGHTLY ? 20_000 : 5_000;
/** Between two transactions of a client. */
const IDLE_MS = IS_NIGHTLY ? 20 : 60;
/** Of a client that stays for a while. */
const TRANSACTIONS = IS_NIGHTLY ? 30 : 10;
/** Longer than a statement takes that nobody holds. */
const HELD_MS = 200;

const hindrance = firewallHindrance();

let servers: TestHost;
let branch: Branch;
let redirect: Redirect;
let stopUnits = async () => {};
beforeAll(async () => {
  if (hindrance) return;
  servers = await startHost({ hasStandby: true });
  stopUnits = runPoolerUnits(servers);
  redirect = packetRedirect(servers.settings, (input) => asRoot(() => nft(['-f', '-'], input)));
  const project = new Project(servers.host);
  branch = await project.create('db_restarted_prod', null);
  const owner = await connect(servers.host, 'direct', branch, 'owner');
  await owner.query('CREATE TABLE entry (client int)');
  await owner.end();
});
afterAll(async () => {
  await redirect?.remove();
  await stopUnits();
  await servers?.stop();
});

const open = () => connect(servers.host, 'pooled', branch, 'read_write');
const phase = () => readRestart(servers.settings).phase;
/** PgBouncer still reads logins that exist no longer, until the next change of the rules. */
async function growMemory() {
  const file = join(servers.layout.rulesDir, RULE_FILES.poolerUsers);
  const logins = Array.from(
    { length: FORGOTTEN_LOGINS },
    (_, number) => `"gone_${number}" "md5${'0'.repeat(32)}"\n`,
  );
  writeFileSync(file, readFileSync(file, 'utf8') + logins.join(''));
  await inAdminConsole(servers.settings, 'main', (console) => console.query('RELOAD'));
}

/**
 * Connects, writes some rows in a transaction each, and disconnects, until `isOver`.
 * @returns the rows written
 */
async function writeRows(client: number, isOver: () => boolean): Promise<number> {
  let written = 0;
  while (!isOver()) {
    const session = await open();
    // Half of the clients stay for a while, as those of a program with a pool do.
    const transactions = client % 2 === 0 ? 1 : TRANSACTIONS;
    for (let count = 0; count < transactions; count++) {
      await session.query('BEGIN');
      await session.query('INSERT INTO entry VALUES ($1)', [client]);
      await session.query('COMMIT');
      written += 1;
      await sleep(IDLE_MS);
    }
    await session.end();
  }
  return written;
}

/** What PostgreSQL's protocol gives a client to cancel its statement with; `pg` has no types for it. */
interface CancelKey {
  processID: number;
  secretKey: number;
}

/** CancelRequest (PostgreSQL documentation, 54.7), which needs no TLS. */
async function requestCancel(port: number, { processID, secretKey }: CancelKey): Promise<void> {
  const request = Buffer.alloc(16);
  for (const [index, value] of [16, 80_877_102, processID, secretKey].entries())
    request.writeInt32BE(value, index * 4);
  const socket = dial(port, '127.0.0.1');
  socket.end(request);
  await once(socket, 'close');
}

/** A restart in this process, as the agent performs it, up to `signal`. */
function restart(
  signal = new AbortController().signal,
  more: Partial<AgentSettings> = {},
  log: Log = () => {},
): Promise<void> {
  const host = { ...servers.host, settings: { ...servers.settings, ...more }, log };
  askForRestart(servers.settings);
  return new PoolerRestarts(host, redirect).poll(signal);
}

const endOf = (client: pg.Client) => new Promise<void>((resolve) => client.once('end', resolve));

const clientsOf = (instance: Instance) =>
  inAdminConsole(servers.settings, instance, async (console) => (await showClients(console)).length);

test.skipIf(hindrance)('clients notice nothing of a restart, after which the memory is back', async () => {
  await growMemory();
  const before = await inAdminConsole(servers.settings, 'main', showMemory);
  expect(before).toBeGreaterThan(FORGOTTEN_LOGINS * 2_000);
  let isOver = false;
  const clients = Array.from({ length: CLIENTS }, (_, client) => writeRows(client, () => isOver));
  const results = Promise.allSettled(clients);
  await eventually(async () => expect(await clientsOf('main')).toBeGreaterThan(CLIENTS / 4));
  const stop = new AbortController();
  const agent = new PoolerRestarts(servers.host, redirect).run(stop.signal);
  const asked = await servers.program('pooler', 'restart', '--json');
  isOver = true;
  stop.abort();
  await agent;
  expect(asked).toMatchObject({ exitCode: 0, stderr: '' });
  expect(JSON.parse(asked.stdout).memory_bytes).toBeLessThan(before / 4);
  const failures = (await results).flatMap((result) =>
    result.status === 'rejected' ? [String(result.reason)] : [],
  );
  expect(failures).toEqual([]);
  const written = (await Promise.all(clients)).reduce((sum, rows) => sum + rows, 0);
  const reader = await open();
  expect((await reader.query('SELECT count(*)::int AS rows FROM entry')).rows).toEqual([{ rows: written }]);
  await reader.end();
  expect(phase()).toBe('none');
  expect(servers.isRunning('standby')).toBe(false);
});

test.skipIf(hindrance)(
  'during a restart, commands reach the clients of both, and the next agent completes it',
  async () => {
    const { settings, rules } = servers.host;
    const early = await open();
    const killed = new AbortController();
    const begun = restart(killed.signal);
    await eventually(async () => expect(phase()).toBe('away'));
    const late = await open();
    expect([await clientsOf('main'), await clientsOf('standby')]).toEqual([1, 1]);
    expect((await withAdminConsoles(settings, showClients)).flat()).toHaveLength(2);

    await pause(settings, branch.database);
    const answers = [early, late].map((client) => client.query('SELECT 1'));
    const held = answers.map((answer) =>
      Promise.race([answer.then(() => 'answered'), sleep(HELD_MS, 'held')]),
    );
    expect(await Promise.all(held)).toEqual(['held', 'held']);
    await resume(settings, branch.database);
    await Promise.all(answers);

    if (knowsPeers()) {
      // A request to cancel is a new connection, which reaches the standby.
      const endless = early.query('SELECT pg_sleep(600)').catch((error: Error) => error.message);
      await eventually(async () => {
        await requestCancel(settings.POOLER_PORT, early as pg.Client & CancelKey);
        expect(await Promise.race([endless, sleep(HELD_MS)])).toMatch(/canceling statement/);
      });
    }

    killed.abort();
    await begun;
    expect(phase()).toBe('away');
    const ends = [early, late].map(endOf);
    await rules.withhold([branch.database], async () => {});
    await Promise.all(ends);
    await restart();
    expect(phase()).toBe('none');
    expect(await clientsOf('main')).toBe(0);
  },
);

test.skipIf(hindrance)('a damaged record of a restart is replaced, and the standby ends', async () => {
  const killed = new AbortController();
  const client = await open();
  const begun = restart(killed.signal);
  await eventually(async () => expect(phase()).toBe('away'));
  killed.abort();
  await begun;
  await client.end();
  writeFileSync(join(servers.settings.STATE_DIR, 'pooler/restart.json'), '');
  expect(phase()).toBe('back');
  await restart();
  expect(phase()).toBe('none');
  expect(servers.isRunning('standby')).toBe(false);
  await (await open()).end();
});

test.skipIf(hindrance)(
  'at the end of the time to leave, a transaction finishes and idle clients are ended',
  async () => {
    const [idle, busy] = await Promise.all([open(), open()]);
    await busy.query('BEGIN; INSERT INTO entry VALUES (-1)');
    const ended = endOf(idle);
    let restarted = Promise.resolve();
    const timeIsOver = new Promise<void>((resolve) => {
      const log: Log = (event) => event === 'pooler.clients_ended' && resolve();
      restarted = restart(undefined, { POOLER_DRAIN_SECONDS: 0 }, log);
    });
    await timeIsOver;
    await busy.query('COMMIT');
    await ended;
    await restarted;
    const reader = await open();
    expect((await reader.query('SELECT client FROM entry WHERE client < 0')).rows).toEqual([{ client: -1 }]);
    await reader.end();
  },
);

test.skipIf(hindrance)('a restart that cannot begin leaves PgBouncer as it was', async () => {
  const client = await open();
  const impossible = new PoolerRestarts(servers.host, {
    ...redirect,
    toStandby: () => Promise.reject(new Error('no NAT')),
  });
  askForRestart(servers.settings);
  await expect(impossible.poll(new AbortController().signal)).rejects.toThrow('no NAT');
  expect(readRestart(servers.settings)).toMatchObject({ phase: 'none', failure: 'no NAT' });
  expect((await client.query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }]);
  expect(servers.isRunning('standby')).toBe(false);
  await client.end();
});
