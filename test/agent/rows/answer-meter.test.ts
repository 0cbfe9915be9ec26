import { expect, test } from 'vitest';
import { answerMeter } from '../../../agent/postgres/bounded-socket.ts';

function message(kind: string, bytes: number, sent = bytes): Buffer {
  const header = Buffer.from(`${kind}0000`);
  header.writeUInt32BE(bytes + 4, 1);
  return Buffer.concat([header, Buffer.alloc(sent, 'Z')]);
}

test('a message counts as soon as its length is known', () => {
  expect(answerMeter()(message('E', 450_000_000, 10))).toBe(450_000_005);
});

test('messages add up until the answer is complete, however they are cut', () => {
  const stream = Buffer.concat([message('D', 100), message('D', 200), message('Z', 1), message('D', 50)]);
  for (const size of [1, 3, 7, 1_000]) {
    const meter = answerMeter();
    const measured = [];
    for (let at = 0; at < stream.length; at += size) measured.push(meter(stream.subarray(at, at + size)));
    expect(Math.max(...measured)).toBe(105 + 205 + 6);
    expect(measured.at(-1)).toBe(size === 1_000 ? 316 : 0);
  }
});

test('messages that are passed on do not count, whatever comes between them', () => {
  const meter = answerMeter('d'.charCodeAt(0));
  const rows = [message('H', 10), message('d', 500_000), message('N', 100), message('d', 70)];
  expect(meter(Buffer.concat(rows))).toBeLessThan(200);
  expect(meter(message('N', 450_000_000, 10))).toBeGreaterThan(450_000_000);
});
