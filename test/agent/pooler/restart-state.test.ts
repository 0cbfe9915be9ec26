import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Host } from '../../../agent/host/host.ts';
import { PoolerRestarts } from '../../../agent/pooler/restart.ts';
import { packetRedirect } from '../../../agent/pooler/restart-redirect.ts';
import {
  instancesNow,
  readRestart,
  repairRestart,
  wantStandby,
  writeRestart,
} from '../../../agent/pooler/restart-state.ts';
import { readSettings } from '../../../agent/process/settings.ts';

let folder: string;
const settings = () => readSettings({ STATE_DIR: folder, POOLER_SOCKET_DIR: folder });
const damage = (text: string) => writeFileSync(join(folder, 'pooler/restart.json'), text);

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-restart-'));
  mkdirSync(join(folder, 'pooler'));
});
afterEach(() => rmSync(folder, { recursive: true }));

test.each(['', '{"phase":"aw', 'null', '{"phase":"unknown","since":"2026-11-23T00:00:00Z","failure":null}'])(
  'a damaged record is read as no restart: %s',
  (text) => {
    damage(text);
    expect(readRestart(settings()).phase).toBe('none');
    expect(instancesNow(settings())).toEqual({ newClients: 'main', other: null });
  },
);

test('with a damaged record, a standby that may have clients is still reached, and is to end', () => {
  damage('');
  wantStandby(settings());
  expect(instancesNow(settings())).toEqual({ newClients: 'main', other: 'standby' });
  expect(repairRestart(settings())).toBe(true);
  expect(readRestart(settings())).toMatchObject({ phase: 'back', failure: expect.any(String) });
  expect(Date.parse(readRestart(settings()).since)).toBeGreaterThan(0);
});

test('a damaged record is replaced and logged once, an intact one stays', async () => {
  damage('');
  const events: string[] = [];
  const host = { settings: settings(), log: (event: string) => events.push(event) } as unknown as Host;
  const restarts = new PoolerRestarts(host, packetRedirect(settings()));
  // No PgBouncer runs here.
  for (const _ of [1, 2]) await restarts.poll(new AbortController().signal).catch(() => {});
  expect(events).toEqual(['pooler.restart_state_damaged']);
  writeRestart(settings(), 'away');
  expect(repairRestart(settings())).toBe(false);
  expect(readRestart(settings()).phase).toBe('away');
});
