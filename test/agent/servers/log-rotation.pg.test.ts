import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { poolerLogRotation } from '../../../agent/servers/unit-drop-ins.ts';
import { install } from '../../support/debian.ts';
import { eventually } from '../../support/eventually.ts';
import { asRoot } from '../../support/host/host.ts';
import { asClient, type HostWithProject, startHostWithProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** The line of the rules that signals both poolers, which have no units here. */
const SIGNAL = /systemctl kill --signal=HUP [^\n]*/;

/** The rules that `join` installs, by logrotate itself. */
describe.runIf(IS_NIGHTLY && asRoot(() => install('logrotate')))("the log of the pooler's attempts", () => {
  let started: HostWithProject;
  let folder: string;
  let log: string;
  let rules: string;

  beforeAll(async () => {
    started = await startHostWithProject('db_rotated_prod', 'SELECT');
    const { layout } = started.servers;
    log = layout.pooler.logFile;
    folder = dirname(log);
    rules = join(folder, 'logrotate.conf');
    const text = poolerLogRotation(layout);
    expect(text).toMatch(SIGNAL);
    const ini = join(layout.postgres.socketDir, 'pgbouncer.ini');
    const signal = `kill -HUP $(pgrep -f '^\\S*pgbouncer ${ini}')`;
    // logrotate ignores rules that are not of root.
    asRoot(() =>
      writeFileSync(
        rules,
        text.replace(SIGNAL, () => signal),
        { mode: 0o644 },
      ),
    );
  });
  afterAll(() => started?.servers.stop());

  const rotate = (...words: string[]) =>
    asRoot(() =>
      execFileSync('logrotate', [...words, '--state', `${rules}.status`, rules], {
        stdio: 'pipe',
        encoding: 'utf8',
      }),
    );
  const kept = () => readdirSync(folder).filter((name) => /^pgbouncer\.log-\d{8}-\d+$/.test(name));
  const connectOnce = () => asClient(started.servers.host, 'pooled', started.main, 'read_only', 'SELECT');

  test('stays while it is small', () => {
    rotate();
    expect(kept()).toEqual([]);
  });

  test('is renamed once it is large, and the pooler writes the next one', async () => {
    truncateSync(log, 2 ** 30);
    rotate();
    expect(kept()).toHaveLength(1);
    await connectOnce();
    await eventually(async () => expect(readFileSync(log, 'utf8')).toContain('db_rotated_prod'));
    expect(statSync(log).size).toBeLessThan(2 ** 20);
  });
});
