import { expect, test } from 'vitest';
import { planSchedule } from './plan.ts';
import type { Schedule } from './schedule.ts';
import { shrink } from './shrink.ts';

const schedule: Schedule = {
  ...planSchedule(1),
  faults: [
    { when: { after_ms: 1 }, strikes: [{ kind: 'cut', ms: 0 }] },
    {
      when: { step: 2 },
      strikes: [
        { kind: 'kill', part: 'agent', ms: 0, host: 1 },
        { kind: 'duplicate', ms: 5 },
      ],
    },
  ],
};

/** Fails as long as the agent is killed while somebody makes a branch. */
const fails = async ({ actors, faults }: Schedule) =>
  faults.some(({ strikes }) => strikes.some(({ kind }) => kind === 'kill')) &&
  actors.some(({ groups }) => groups.flat().some(({ kind }) => kind === 'create_branch'));

test('operations and faults without a part in the failure are removed', async () => {
  const { actors, faults } = await shrink(schedule, fails, 1000);
  expect(faults).toEqual([{ when: { step: 2 }, strikes: [{ kind: 'kill', part: 'agent', ms: 0, host: 1 }] }]);
  expect(actors.flatMap(({ groups }) => groups.flat()).map(({ kind }) => kind)).toEqual(['create_branch']);
});

test('it ends at the limit of tries', async () => {
  let tries = 0;
  const smallest = await shrink(
    schedule,
    async () => {
      tries += 1;
      return false;
    },
    7,
  );
  expect([tries, smallest]).toEqual([7, schedule]);
});
