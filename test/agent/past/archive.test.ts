import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'vitest';
import { archiveFile, firstArchivedSince } from '../../../agent/past/archive.ts';
import { usableCopies } from '../../../agent/past/base-copies.ts';
import { foldersIn } from '../../../agent/past/folders.ts';
import { firstGap, segmentNumber } from '../../../agent/past/segments.ts';
import { pastConf } from '../../../agent/servers/backup-configuration.ts';
import { mountXfs } from '../../support/stack/xfs.ts';

const SEGMENT_BYTES = 16 * 2 ** 20;
const FIRST = '0000000100000000000000FE';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'branchgate-archive-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const never = () => assert.fail('there is room');
function segment(name: string, content: string): string {
  mkdirSync(join(root, 'pg_wal'), { recursive: true });
  const path = join(root, 'pg_wal', name);
  writeFileSync(path, content);
  return path;
}

test('a file is stored once, a repeated call changes nothing, and another content is refused', async () => {
  const folders = foldersIn(join(root, 'past'));
  assert(await archiveFile(folders, segment(FIRST, 'one'), never));
  assert(await archiveFile(folders, segment(FIRST, 'one'), never));
  await assert.rejects(archiveFile(folders, segment(FIRST, 'two'), never), /another .* is in the archive/);
  assert.deepEqual(readdirSync(folders.wal), [FIRST]);
  assert.equal(readFileSync(join(folders.wal, FIRST), 'utf8'), 'one');
});

test('what a killed call left is replaced, and a name that is none of the WAL is refused', async () => {
  const folders = foldersIn(join(root, 'past'));
  mkdirSync(folders.wal, { recursive: true });
  writeFileSync(join(folders.wal, `.${FIRST}`), 'half');
  assert(await archiveFile(folders, segment(FIRST, 'whole'), never));
  assert.deepEqual(readdirSync(folders.wal), [FIRST]);
  for (const name of ['postgresql.conf', `${FIRST}.evil`, '../x'])
    await assert.rejects(archiveFile(folders, join(root, name), never));
});

test('the end of a replay is in the first segment that was archived after the time', async () => {
  const folders = foldersIn(join(root, 'past'));
  const names = ['FC', 'FD', 'FE', 'FF'].map((end) => `0000000100000000000000${end}`);
  for (const [n, name] of names.entries()) {
    await archiveFile(folders, segment(name, name), never);
    utimesSync(join(folders.wal, name), 10 * n, 10 * n);
  }
  writeFileSync(join(folders.wal, '00000002.history'), '');
  const [, second = '', third = '', last = ''] = names;
  assert.equal(await firstArchivedSince(folders, second, 0), second);
  assert.equal(await firstArchivedSince(folders, second, 10_001), third);
  assert.equal(await firstArchivedSince(folders, second, 30_000), last);
  assert.equal(await firstArchivedSince(folders, second, 30_001), null);
});

/** Runs the command for a file as PostgreSQL does: in its data, by a shell. `program` stands for the agent's. */
function archiveByCommand(folder: string, name: string, program = 'false'): void {
  const [, text = ''] = /^archive_command = '(.*)'$/m.exec(pastConf({ pastDir: folder }, { program })) ?? [];
  const command = text
    .replaceAll("''", "'")
    .replace(/%[%pf]/g, (part) => ({ '%p': `pg_wal/${name}`, '%f': name })[part] ?? '%');
  execFileSync('/bin/sh', ['-c', command], { cwd: root, stdio: 'pipe' });
}

test('the command stores a file without the program, which gets what is there already', () => {
  const folder = join(root, "it's 100%");
  mkdirSync(join(folder, 'wal'), { recursive: true });
  segment(FIRST, 'one');
  archiveByCommand(folder, FIRST);
  assert.deepEqual(readdirSync(join(folder, 'wal')), [FIRST]);
  assert.throws(() => archiveByCommand(folder, FIRST));
  archiveByCommand(folder, FIRST, 'echo >called');
  assert.equal(readFileSync(join(root, 'called'), 'utf8'), `archive-wal ${folder} pg_wal/${FIRST}\n`);
});

test('no file of the WAL shares a block with the archive, where PostgreSQL would copy it to write it again', () => {
  const disk = mountXfs(400 * 2 ** 20);
  try {
    root = join(disk.folder, 'data');
    const path = segment(FIRST, 'x'.repeat(SEGMENT_BYTES));
    mkdirSync(join(root, 'past/wal'), { recursive: true });
    archiveByCommand(join(root, 'past'), FIRST);
    execFileSync('sync', [path]);
    assert.doesNotMatch(execFileSync('filefrag', ['-v', path], { encoding: 'utf8' }), /shared/);
  } finally {
    disk.remove();
  }
});

test('segments are counted across the parts of their names, and a gap is found', () => {
  assert.equal(segmentNumber(FIRST, SEGMENT_BYTES), 254);
  assert.equal(segmentNumber('000000020000000100000000', SEGMENT_BYTES), 256);
  assert.equal(segmentNumber('00000002.history', SEGMENT_BYTES), null);
  assert.equal(firstGap(new Set([1, 2, 3]), 2), null);
  assert.equal(firstGap(new Set([1, 2, 4]), 1), 3);
  assert.equal(firstGap(new Set([4]), 3), 3);
  assert.equal(firstGap(new Set([1]), 3), null);
});

test('a copy before a gap is of no use', () => {
  const copy = (name: string, segment: string) => ({
    name,
    segment,
    ended_at: '2026-11-23T10:15:00.000000Z',
    segment_bytes: SEGMENT_BYTES,
    projects: {},
    logs_pages: true,
    apart: [],
  });
  const copies = [copy('old', '000000010000000000000001'), copy('new', '000000010000000000000003')];
  const archived = ['000000010000000000000001', '000000010000000000000003', '000000010000000000000004'];
  assert.deepEqual(
    usableCopies(copies, archived).map(({ name }) => name),
    ['new'],
  );
});
