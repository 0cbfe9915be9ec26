import { expect, test } from 'vitest';
import { SourcePositions } from '../../../agent/transfer/follow-lags.ts';

const SECOND = 1_000;

/** A source that writes 100 bytes a second from its start. */
const written = (seconds: number) => {
  const positions = new SourcePositions();
  for (let at = 0; at <= seconds; at += 1) positions.add(100 * at, at * SECOND);
  return positions;
};

test.each([
  [0, 0],
  [150, 1_500],
  [1_000, 10_000],
  // It is level with the last one, as far as is known.
  [5_000, 10_000],
])('the source was at %i after %i ms', (lsn, ms) => {
  expect(written(10).timeOf(lsn)).toBe(ms);
});

test('an idle source was at its position until the last look at it', () => {
  const positions = written(10);
  positions.add(1_000, 60 * SECOND);
  expect(positions.timeOf(1_000)).toBe(60 * SECOND);
  positions.add(1_100, 61 * SECOND);
  expect([positions.timeOf(1_000), positions.timeOf(1_050)]).toEqual([60 * SECOND, 60.5 * SECOND]);
});

test('a time before what is known is not younger than that', () => {
  const positions = new SourcePositions();
  expect(positions.timeOf(5)).toBeNull();
  positions.add(100, 3 * SECOND);
  expect(positions.timeOf(5)).toBe(3 * SECOND);
});

test('a source that has gone back is known from there on', () => {
  const positions = written(10);
  positions.add(450, 20 * SECOND);
  expect(positions.timeOf(10_000)).toBe(20 * SECOND);
  expect(positions.timeOf(425)).toBe(4_000 + (16_000 * 25) / 50);
});

test('days need little memory, the last hour to a second', () => {
  const positions = written(86_400 * 3);
  expect(positions.size).toBeLessThanOrEqual(7_200);
  const now = 86_400 * 3;
  for (const ago of [1, 60, 3_000]) expect(positions.timeOf(100 * (now - ago))).toBe((now - ago) * SECOND);
  // A source that writes evenly is known exactly between two positions, too.
  expect(positions.timeOf(1_234_567)).toBeCloseTo(12_345_670, 3);
});

test('the next process continues with what this one has stored', () => {
  const next = new SourcePositions();
  // Its clock began later, and it has looked before it has read what is stored.
  next.add(2_100, 1 * SECOND);
  next.restore(written(1_000).stored(5_000), 5_000 + 1_000 * SECOND);
  expect(next.size).toBeLessThan(300);
  expect(next.timeOf(2_050)).toBeGreaterThan(next.timeOf(1_000) ?? Number.NaN);
  expect(next.timeOf(1_000)).toBeCloseTo(-990 * SECOND, -3);
});
