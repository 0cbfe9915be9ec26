import assert from 'node:assert/strict';
import { setImmediate } from 'node:timers/promises';
import { test } from 'vitest';
import { RecoveryTurns } from '../../../agent/past/recovery-turns.ts';

test('recoveries come one after another, two of a tenant wait, and another tenant waits for none of these', async () => {
  const turns = new RecoveryTurns();
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const begin = async (tenant: string) => {
    const end = await turns.begin(tenant);
    begun.push(tenant);
    ends.push(end);
  };
  await begin('a');
  const waiting = ['a', 'a', 'b'].map(begin);
  await assert.rejects(turns.begin('a'), { code: 'HOST_BUSY' });
  assert.deepEqual(begun, ['a']);
  for (const _ of waiting) {
    ends.pop()?.();
    await setImmediate();
  }
  assert.deepEqual(begun, ['a', 'b', 'a', 'a']);
  assert.equal(turns.beginDrill(), null);
  ends.pop()?.();
});

test('a drill begins while nobody recovers, and is ended for the next one who does', async () => {
  const turns = new RecoveryTurns();
  const drill = turns.beginDrill();
  assert(drill);
  assert.equal(turns.beginDrill(), null);
  const recovery = turns.begin('a');
  assert(drill.signal.aborted);
  drill.end();
  const end = await recovery;
  assert.equal(turns.beginDrill(), null);
  end();
  assert.equal(turns.beginDrill()?.signal.aborted, false);
});
