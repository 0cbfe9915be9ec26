import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { nft } from '../../../agent/firewall/nft.ts';
import {
  inConsole,
  readMemory,
  showClients,
  showMemory,
  withConsoles,
} from '../../../agent/pooler/console.ts';
import { pause, resume } from '../../../agent/pooler/pause.ts';
import { packetRedirect, type Redirect } from '../../../agent/pooler/redirect.ts';
import { askForRestart, readRestart } from '../../../agent/pooler/restart-state.ts';
import { PoolerRestarts } from '../../../agent/pooler/run-restarts.ts';
import { RULE_FILES } from '../../../agent/servers/configuration.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot, knowsPeers, startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, Project } from '../../support/host/host-project.ts';
import { runPoolerUnits } from '../../support/host/pooler-units.ts';
import { firewallHindrance } from '../../support/neighbours/firewall.ts';

const CLIENTS = 200;
/** 2.3 KB each. */
const FORGOTTEN_LOGINS = 20_000;
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
const restarts = (settleMs = 0, more: Partial<typeof servers.settings> = {}, by = redirect) =>
  new PoolerRestarts({ ...servers.host, settings: { ...servers.settings, ...more } }, by, settleMs);

/** PgBouncer is told of logins that exist no longer at the next change of the rules. */
async function growMemory() {
  const file = join(servers.layout.rulesDir, RULE_FILES.poolerUsers);
  const logins = Array.from(
    { length: FORGOTTEN_LOGINS },
    (_, number) => `"gone_${number}" "md5${'0'.repeat(32)}"\n`,
  );
  writeFileSync(file, readFileSync(file, 'utf8') + logins.join(''));
  await inConsole(servers.settings, 'main', (console) => console.query('RELOAD'));
}

/** Connects, writes some rows in a transaction each, and disconnects, until `isOver`. @returns the rows written */
async function writeRows(client: number, isOver: () => boolean): Promise<number> {
  let written = 0;
  while (!isOver()) {
    const session = await open();
    // Half of the clients stay for a while, as those of a program with a pool do.
    const transactions = client % 2 === 0 ? 1 : 20;
    for (let count = 0; count < transactions; count++) {
      await session.query('BEGIN');
      await session.query('INSERT INTO entry VALUES ($1)', [client]);
      await session.query('COMMIT');
      written += 1;
      if (transactions > 1) await sleep(20);
    }
    await session.end();
  }
  return written;
}

test.skipIf(hindrance)(
  `${CLIENTS} clients notice nothing of a restart, after which the memory is back`,
  async () => {
    await growMemory();
    const before = await inConsole(servers.settings, 'main', showMemory);
    expect(before).toBeGreaterThan(FORGOTTEN_LOGINS * 2_000);
    let isOver = false;
    const clients = Array.from({ length: CLIENTS }, (_, client) => writeRows(client, () => isOver));
    const results = Promise.allSettled(clients);
    await eventually(async () =>
      expect((await inConsole(servers.settings, 'main', showClients)).length).toBeGreaterThan(CLIENTS / 2),
    );
    askForRestart(servers.settings);
    await new PoolerRestarts(servers.host, redirect).poll(new AbortController().signal);
    isOver = true;
    const failures = (await results).flatMap((result) =>
      result.status === 'rejected' ? [String(result.reason)] : [],
    );
    expect(failures).toEqual([]);
    const written = (await Promise.all(clients)).reduce((sum, rows) => sum + rows, 0);
    const [stored] = await servers.query<{ n: string }>(`SELECT pg_database_size('db_restarted_prod') AS n`);
    expect(stored).toBeDefined();
    const reader = await open();
    expect((await reader.query('SELECT count(*)::int AS rows FROM entry')).rows).toEqual([{ rows: written }]);
    await reader.end();
    expect(phase()).toBe('none');
    expect(servers.isRunning('standby')).toBe(false);
    expect(await readMemory(servers.settings)).toBeLessThan(before / 10);
  },
);
