import { expect, test } from 'vitest';
import type { Schemas } from '../../client/client.ts';
import { annotationsOf } from '../../console/pages/monitoring/annotations.ts';

const ID = '2f1f4c3e-93d4-4a53-8f5e-5b1d7f0f6a21';
const START = Date.parse('2026-11-22T12:00:00Z') / 1000;
const END = START + 3_600;
const after = (seconds: number) => new Date((START + seconds) * 1000).toISOString();

const branchWith = (blocked: Schemas['Branch']['blocked']) =>
  ({ id: ID, created_at: after(-60), blocked }) as Schemas['Branch'];
const reset = (seconds: number, status: string) =>
  ({ kind: 'branch.reset', status, branch_id: ID, updated_at: after(seconds) }) as Schemas['Job'];
const block = (seconds: number, reason: string, branch_id = ID) =>
  ({ branch_id, created_at: after(seconds), metadata: { reason } }) as unknown as Schemas['AuditEvent'];

const PRESENT = branchWith({ reason: 'disk', until: after(3_650) });

test('a block is drawn where it began, among the resets and checkpoints of the range', () => {
  const happened = {
    branch: PRESENT,
    jobs: [reset(900, 'succeeded'), reset(950, 'failed')],
    checkpoints: [
      { checkpoint_id: ID, number: 2, label: 'before prices', taken_at: after(800) },
      { checkpoint_id: ID, number: 1, label: null, taken_at: after(500) },
    ],
    blocks: [
      block(600, 'transaction_ids'),
      block(-1, 'locks'),
      block(700, 'attempts'),
      block(700, 'disk', 'other'),
    ],
  };
  expect(annotationsOf(happened, START, END)).toEqual([
    { at: START + 500, label: 'Checkpoint 1' },
    { at: START + 600, label: 'Blocked: transaction ids' },
    { at: START + 800, label: 'Checkpoint 2: before prices' },
    { at: START + 900, label: 'Reset' },
  ]);
});

test('a block that began after the last measurement is drawn at the end', () => {
  const happened = { branch: PRESENT, jobs: [], checkpoints: [], blocks: [block(3_620, 'disk')] };
  expect(annotationsOf(happened, START, END)).toEqual([{ at: END, label: 'Blocked: disk' }]);
});

test('without the audit log, the present block is drawn at the end', () => {
  const happened = { branch: PRESENT, jobs: [], checkpoints: [], blocks: [] };
  expect(annotationsOf(happened, START, END)).toEqual([{ at: END, label: 'Blocked: disk' }]);
});

test('a branch that was created in the range and is not blocked has one mark', () => {
  const happened = { branch: branchWith(null), jobs: [], checkpoints: [], blocks: [] };
  expect(annotationsOf(happened, START - 120, END)).toEqual([{ at: START - 60, label: 'Created' }]);
});
