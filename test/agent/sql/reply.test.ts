import { readdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, test } from 'vitest';
import { REPLY_BOUNDS, Replies, wholeCharacters } from '../../../agent/sql/reply.ts';

const { part, reply: most, ofTenant } = REPLY_BOUNDS;

async function readAll(replies: Replies, id: string, bytes: number): Promise<string[]> {
  const parts: string[] = [];
  for (let offset = 0; offset < bytes; ) {
    const read = await replies.read(id, offset);
    expect(read.bytes).toBe(Buffer.byteLength(read.text));
    expect(read.bytes).toBeLessThanOrEqual(part);
    parts.push(read.text);
    offset += read.bytes;
  }
  return parts;
}

test('a short reply stays in memory; a long one is read in parts that cut no character, once', async () => {
  const replies = new Replies();
  const short = replies.begin('t');
  short.add('{"rows":');
  short.add('[]}');
  expect(short.finish()).toEqual({ text: '{"rows":[]}', bytes: 11 });

  for (const text of ['€', '😀', 'ü', 'x', 'xü€😀']) {
    const long = replies.begin('t');
    const whole = text.repeat(300_000);
    for (let at = 0; at < whole.length; at += 4_000) long.add(whole.slice(at, at + 4_000));
    expect(long.finish()).toBeNull();
    const id = replies.keep(long);
    expect((await readAll(replies, id, long.bytes)).join('') === whole).toBe(true);
    await expect(replies.read(id, 0)).rejects.toMatchObject({ code: 'INVALID_CALL' });
  }
});

test('a text that is cut anywhere ends before the character that is cut', () => {
  const bytes = Buffer.from('aü€😀');
  const whole = [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10];
  expect(whole.map((_, length) => wholeCharacters(bytes.subarray(0, length)))).toEqual(whole);
});

test('a reply over the bound is refused, and so is one that finds no room until others are read', async () => {
  const replies = new Replies();
  const large = 'x'.repeat(most);
  const refused = replies.begin('t');
  expect(() => refused.add(`${large}x`)).toThrow(expect.objectContaining({ sqlstate: '54000' }));
  refused.close();

  const fill = () => {
    const reply = replies.begin('t');
    reply.add(large);
    expect(reply.finish()).toBeNull();
    return { id: replies.keep(reply), bytes: reply.bytes };
  };
  const kept = Array.from({ length: Math.floor(ofTenant / most) }, fill);
  const late = replies.begin('t');
  expect(() => late.add(large)).toThrow(expect.objectContaining({ sqlstate: '53300' }));
  late.close();
  replies.begin('another').add(large);
  const [first] = kept;
  await readAll(replies, first?.id ?? '', first?.bytes ?? 0);
  fill();
  replies.close();
  fill();
  replies.close();
});

test('the last part ends a reply, and those that are read meanwhile come from its own file', async () => {
  const replies = new Replies();
  const keep = (tenant: string, text: string) => {
    const reply = replies.begin(tenant);
    reply.add(text.repeat(most));
    expect(reply.finish()).toBeNull();
    return { id: replies.keep(reply), bytes: reply.bytes };
  };
  const mine = keep('t', 'a');
  const reads = Array.from({ length: 8 }, (_, n) => replies.read(mine.id, n * part));
  const last = replies.read(mine.id, mine.bytes - 1);
  // This file gets the number of the first one if that is closed.
  await last;
  keep('another', 'b');
  expect(new Set((await Promise.all(reads)).flatMap(({ text }) => [...text]))).toEqual(new Set('a'));
  await expect(replies.read(mine.id, 0)).rejects.toMatchObject({ code: 'INVALID_CALL' });
  replies.close();
});

test('the file of a reply has no name, so a killed agent leaves none', () => {
  const names = () => readdirSync(tmpdir()).filter((name) => name.startsWith('branchgate-sql-'));
  const before = names();
  const replies = new Replies();
  const reply = replies.begin('t');
  reply.add('x'.repeat(part + 1));
  expect(names()).toEqual(before);
  reply.close();
});
