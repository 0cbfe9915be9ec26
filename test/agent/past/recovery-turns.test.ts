import assert from 'node:assert/strict';
import { test } from 'vitest';
import { RecoveryTurns } from '../../../agent/past/recovery-turns.ts';

test('recoveries come one after another, two of a tenant wait, and others wait beside them', async () => {
  const turns = new RecoveryTurns();
  const begun: string[] = [];
  const begin = (tenant: string) =>
    turns.begin(tenant).then((end) => {
      begun.push(tenant);
      return end;
    });
  const first = await begin('a');
  const waiting = ['a', 'a', 'b'].map(begin);
  await assert.rejects(turns.begin('a'), { code: 'HOST_BUSY' });
  assert.deepEqual(begun, ['a']);
  let end = first;
  for (const next of waiting) {
    end();
    end = await next;
  }
  assert.deepEqual(begun, ['a', 'a', 'a', 'b']);
  assert.equal(turns.beginDrill(), null);
  end();
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
