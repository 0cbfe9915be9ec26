import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ReplayMeter } from '../../../agent/past/replay-meter.ts';

const MB = 2 ** 20;
const nameOf = (number: number) => `0000000100000000${number.toString(16).toUpperCase().padStart(8, '0')}`;

test('a replay says how much log it has, how much is done, and how long the rest takes', () => {
  let now = 1_000;
  const meter = new ReplayMeter(19, 16 * MB, () => now);
  const reached = (number: number, at: number) => {
    now = at;
    return meter.reached(nameOf(number));
  };
  assert.equal(meter.reached('00000002.history'), null);
  // The checkpoint is in a later segment than the beginning of the replay.
  assert.equal(reached(12, 1_000)?.replayed_bytes, 0);
  assert.deepEqual(reached(10, 2_000), { bytes: 160 * MB, replayed_bytes: 0, seconds_left: null });
  assert.deepEqual(reached(12, 4_000), { bytes: 160 * MB, replayed_bytes: 32 * MB, seconds_left: 8 });
  assert.deepEqual(reached(19, 11_000), { bytes: 160 * MB, replayed_bytes: 144 * MB, seconds_left: 1 });
  // The end is in a later segment than the archive said.
  assert.deepEqual(reached(20, 12_000), { bytes: 176 * MB, replayed_bytes: 160 * MB, seconds_left: 1 });
});
