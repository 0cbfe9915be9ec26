import { appendFileSync, mkdtempSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { LogFollower } from '../../../agent/logs/follow-log.ts';
import { eventually } from '../../support/eventually.ts';

let folder: string;
let path: string;
let place: string | null | Error;
let onLocate: () => void;
let lines: string[];
let follower: LogFollower;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-log-'));
  path = join(folder, 'server.log');
  place = path;
  onLocate = () => {};
  lines = [];
  follower = new LogFollower({
    locate: () => {
      onLocate();
      if (place instanceof Error) throw place;
      return place;
    },
    marks: ['hit', 'strike'],
    onLines: (found) => {
      lines.push(...found);
    },
  });
});
afterEach(() => {
  follower.close();
  rmSync(folder, { recursive: true });
});

const write = (text: string) => appendFileSync(path, text);

/** What the next look finds. */
async function found(): Promise<string[]> {
  lines = [];
  await follower.poll();
  return lines;
}

test('what was there before is not read, what comes is; lines without a mark are passed over', async () => {
  write('old hit\n');
  expect(await found()).toEqual([]);
  write('hit one\nnothing\na strike\nhit hit\n');
  expect((await found()).sort()).toEqual(['a strike', 'hit hit', 'hit one']);
  expect(await found()).toEqual([]);
});

test('a line counts once, when it is whole', async () => {
  write('');
  await found();
  write('hit in tw');
  expect(await found()).toEqual([]);
  write('o parts\nhit n');
  expect(await found()).toEqual(['hit in two parts']);
  write('ext\n');
  expect(await found()).toEqual(['hit next']);
});

test('a log that comes into being later is read from its beginning', async () => {
  place = null;
  expect(await found()).toEqual([]);
  place = path;
  expect(await found()).toEqual([]);
  write('hit\n');
  expect(await found()).toEqual(['hit']);
});

test('a log that is renamed: both are read to their ends, nothing twice', async () => {
  write('hit 0\n');
  await found();
  renameSync(path, `${path}.1`);
  appendFileSync(`${path}.1`, 'hit 1\n');
  expect(await found()).toEqual(['hit 1']);
  // As logrotate does: the new file is there before the writer has moved on.
  write('');
  appendFileSync(`${path}.1`, 'hit 2\n');
  expect(await found()).toEqual(['hit 2']);
  appendFileSync(`${path}.1`, 'hit 3\n');
  write('hit 4\n');
  expect(await found()).toEqual(['hit 3', 'hit 4']);
  write('hit 5\n');
  expect(await found()).toEqual(['hit 5']);
});

test('what is still written to the old log while the new one is found', async () => {
  write('hit 0\n');
  await found();
  renameSync(path, `${path}.1`);
  write('hit 2\n');
  onLocate = () => appendFileSync(`${path}.1`, 'hit 1\n');
  expect(await found()).toEqual(['hit 1', 'hit 2']);
});

test('a log that goes on under another name', async () => {
  write('hit 0\n');
  await found();
  write('hit 1\n');
  place = join(folder, 'sunday.log');
  writeFileSync(place, 'hit 2\n');
  expect(await found()).toEqual(['hit 1', 'hit 2']);
});

test('a log that is truncated is read from its new beginning, an unfinished line before is forgotten', async () => {
  write('a line that is long enough\nhi');
  await found();
  truncateSync(path);
  write('t hit\n');
  expect(await found()).toEqual(['t hit']);
});

test('a line too long to be one of interest is passed over, whatever is in it', async () => {
  write('');
  await found();
  write(`hit ${'x'.repeat(600_000)}`);
  expect(await found()).toEqual([]);
  write(' hit\nhit after\n');
  expect(await found()).toEqual(['hit after']);
});

test('long and short lines across many chunks are all found', async () => {
  write('');
  await found();
  const wanted = Array.from({ length: 2_000 }, (_, n) => `hit ${n} ${'y'.repeat((n * 37) % 900)}`);
  write(wanted.map((line) => `${line}\n${'z'.repeat(300)}\n`).join(''));
  expect(await found()).toEqual(wanted);
});

test('following tells of new lines by itself until it is ended, and of what is in its way', async () => {
  const stop = new AbortController();
  const troubles: unknown[] = [];
  place = new Error('no right to look');
  const following = follower.follow(stop.signal, (trouble) => troubles.push(trouble));
  write('');
  await eventually(async () => expect(troubles.at(-1)).toBe(place));
  place = path;
  await eventually(async () => expect(troubles.at(-1)).toBe(null));
  write('hit\n');
  await eventually(async () => expect(lines).toEqual(['hit']));
  stop.abort();
  await following;
});
