import { appendFileSync, mkdtempSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { LogFollower } from '../../../agent/logs/follow-log.ts';
import { eventually } from '../../support/eventually.ts';

let folder: string;
let path: string;
let location: string | null | Error;
let onLocate: () => void;
let lines: string[];
let follower: LogFollower;
let begun: string[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-log-'));
  path = join(folder, 'server.log');
  location = path;
  onLocate = () => {};
  lines = [];
  begun = [];
  follower = new LogFollower({
    locate: () => {
      onLocate();
      if (location instanceof Error) throw location;
      return location;
    },
    between: () => begun,
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

/** The lines that the next poll finds. */
async function found(): Promise<string[]> {
  lines = [];
  await follower.poll();
  return lines;
}

test('new lines are read, existing lines and lines without a mark are not', async () => {
  write('old hit\n');
  expect(await found()).toEqual([]);
  write('hit one\nnothing\na strike\nhit hit\n');
  expect((await found()).sort()).toEqual(['a strike', 'hit hit', 'hit one']);
  expect(await found()).toEqual([]);
});

test('a line is read once, when it is complete', async () => {
  write('');
  await found();
  write('hit in tw');
  expect(await found()).toEqual([]);
  write('o parts\nhit n');
  expect(await found()).toEqual(['hit in two parts']);
  write('ext\n');
  expect(await found()).toEqual(['hit next']);
});

test('a log that is created later is read from its beginning', async () => {
  location = null;
  expect(await found()).toEqual([]);
  location = path;
  expect(await found()).toEqual([]);
  write('hit\n');
  expect(await found()).toEqual(['hit']);
});

test('after a rename both logs are read to their ends, each line once', async () => {
  write('hit 0\n');
  await found();
  renameSync(path, `${path}.1`);
  appendFileSync(`${path}.1`, 'hit 1\n');
  expect(await found()).toEqual(['hit 1']);
  // As with logrotate, the new file exists before the writer switches to it.
  write('');
  appendFileSync(`${path}.1`, 'hit 2\n');
  expect(await found()).toEqual(['hit 2']);
  appendFileSync(`${path}.1`, 'hit 3\n');
  write('hit 4\n');
  expect(await found()).toEqual(['hit 3', 'hit 4']);
  write('hit 5\n');
  expect(await found()).toEqual(['hit 5']);
});

test('lines written to the old log while the new one is opened are read', async () => {
  write('hit 0\n');
  await found();
  renameSync(path, `${path}.1`);
  write('hit 2\n');
  onLocate = () => appendFileSync(`${path}.1`, 'hit 1\n');
  expect(await found()).toEqual(['hit 1', 'hit 2']);
});

test('a log that continues under another name is followed', async () => {
  write('hit 0\n');
  await found();
  write('hit 1\n');
  location = join(folder, 'sunday.log');
  writeFileSync(location, 'hit 2\n');
  expect(await found()).toEqual(['hit 1', 'hit 2']);
});

test('logs that were begun and ended between two polls are read, each line once', async () => {
  write('hit 0\n');
  await found();
  write('hit 1\n');
  const names = ['b.log', 'c.log', 'd.log'].map((name) => join(folder, name));
  names.forEach((name, index) => {
    writeFileSync(name, `hit ${index + 2}\n`);
  });
  location = names[2] ?? null;
  begun = names.slice(0, 2);
  expect(await found()).toEqual(['hit 1', 'hit 2', 'hit 3', 'hit 4']);
  expect(await found()).toEqual([]);
  // One that is deleted before it is read fails this poll. The next one continues after the last log that was
  // read.
  const [gone, next, last] = ['e.log', 'f.log', 'g.log'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ];
  writeFileSync(next, 'hit 5\n');
  writeFileSync(last, 'hit 6\n');
  location = last;
  begun = [next, gone];
  await expect(found()).rejects.toThrow('ENOENT');
  expect(lines).toEqual(['hit 5']);
  begun = [];
  expect(await found()).toEqual(['hit 6']);
});

test('a truncated log is read from its beginning, without the unfinished line before', async () => {
  write('a line that is long enough\nhi');
  await found();
  truncateSync(path);
  write('t hit\n');
  expect(await found()).toEqual(['t hit']);
});

test('a line that is too long is skipped, even with a mark', async () => {
  write('');
  await found();
  write(`hit ${'x'.repeat(600_000)}`);
  expect(await found()).toEqual([]);
  write(' hit\nhit after\n');
  expect(await found()).toEqual(['hit after']);
});

test('long and short lines across many chunks are found', async () => {
  write('');
  await found();
  const wanted = Array.from({ length: 2_000 }, (_, n) => `hit ${n} ${'y'.repeat((n * 37) % 900)}`);
  write(wanted.map((line) => `${line}\n${'z'.repeat(300)}\n`).join(''));
  expect(await found()).toEqual(wanted);
});

test('following reports new lines and errors until it is stopped', async () => {
  const stop = new AbortController();
  const troubles: unknown[] = [];
  location = new Error('permission denied');
  const following = follower.follow(stop.signal, (trouble) => troubles.push(trouble));
  write('');
  await eventually(async () => expect(troubles.at(-1)).toBe(location));
  location = path;
  await eventually(async () => expect(troubles.at(-1)).toBe(null));
  write('hit\n');
  await eventually(async () => expect(lines).toEqual(['hit']));
  stop.abort();
  await following;
});
