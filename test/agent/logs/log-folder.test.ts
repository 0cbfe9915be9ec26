import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { boundLogFolder, currentPostgresLog, postgresLogsBetween } from '../../../agent/logs/postgres-log.ts';

const MB = 1024 * 1024;
const HOUR_MS = 60 * 60 * 1000;
const NOW = Date.parse('2026-03-09T12:00:00Z');

let dataDir: string;
let folder: string;

beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'branchgate-data-'));
  folder = join(dataDir, 'log');
  mkdirSync(folder);
});
afterEach(() => rmSync(dataDir, { recursive: true }));

function writeLog(name: string, hoursAgo: number, bytes = MB) {
  const path = join(folder, name);
  writeFileSync(path, Buffer.alloc(bytes));
  const modified = new Date(NOW - hoursAgo * HOUR_MS);
  utimesSync(path, modified, modified);
}

const writePresent = (name: string) =>
  writeFileSync(join(dataDir, 'current_logfiles'), `stderr log/${name}.log\njsonlog log/${name}.json\n`);

const bound = (megabytes: number) => boundLogFolder({ PGDATA_DIR: dataDir, LOG_FOLDER_MB: megabytes }, NOW);

test('the oldest logs beyond the limit are deleted; the present ones and other files stay', async () => {
  writePresent('postgresql-20260309-110000');
  writeLog('postgresql-20260309-110000.json', 0, 2 * MB);
  writeLog('postgresql-20260309-110000.log', 9);
  writeLog('postgresql-20260309-100000.json', 1);
  writeLog('postgresql-20260309-090000.json', 2);
  writeLog('postgresql-Sun.json', 3);
  writeLog('pgbouncer.log', 4, 5 * MB);
  await bound(5);
  expect(readdirSync(folder).sort()).toEqual([
    'pgbouncer.log',
    'postgresql-20260309-090000.json',
    'postgresql-20260309-100000.json',
    'postgresql-20260309-110000.json',
    'postgresql-20260309-110000.log',
  ]);
  await bound(1);
  expect(readdirSync(folder).sort()).toEqual([
    'pgbouncer.log',
    'postgresql-20260309-110000.json',
    'postgresql-20260309-110000.log',
  ]);
});

test('logs older than a week are deleted; without a running server nothing is', async () => {
  writeLog('postgresql-20260302-110000.json', 7 * 24 + 1);
  writeLog('postgresql-20260302-130000.json', 7 * 24 - 1);
  await bound(1024);
  expect(readdirSync(folder)).toHaveLength(2);
  writePresent('postgresql-20260309-110000');
  await bound(1024);
  expect(existsSync(join(folder, 'postgresql-20260302-110000.json'))).toBe(false);
  expect(existsSync(join(folder, 'postgresql-20260302-130000.json'))).toBe(true);
});

test('the logs between two are those of the same kind that were begun in between, in order', () => {
  const names = ['100001', '100000', '095959', '100002', '100003'];
  for (const name of names) writeLog(`postgresql-20260309-${name}.json`, 0, 0);
  writeLog('postgresql-20260309-100001.log', 0, 0);
  writePresent('postgresql-20260309-100003');
  const path = (time: string) => join(folder, `postgresql-20260309-${time}.json`);
  expect(currentPostgresLog({ PGDATA_DIR: dataDir })).toBe(path('100003'));
  expect(postgresLogsBetween(path('100000'), path('100003'))).toEqual([path('100001'), path('100002')]);
  expect(postgresLogsBetween(path('100003'), path('100003'))).toEqual([]);
  expect(postgresLogsBetween('/elsewhere/postgresql-20260309-100000.json', path('100003'))).toEqual([]);
});
