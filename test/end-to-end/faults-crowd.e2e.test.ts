import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CONCURRENT_CREATIONS } from '../../shared/project/project-status.ts';
import type { BranchBody } from '../support/api.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { FaultStage, insist, VICTIMS, type Victim } from '../support/stack/fault-stage.ts';
import { duringCopy, type Moment } from '../support/stack/moments.ts';

const CREATIONS = 7;

/** Every creation that may run has sent its clone to the host; the others are queued (specification 8). */
const AT_THE_BOUND: Moment = {
  name: 'three run and more wait',
  landings: [{ method: 'branch.clone', call: ['held'], reply: ['unsent'] }],
  reach: async ({ proxy, begin }) => {
    const nextClone = () => proxy.hold({ method: 'branch.clone', side: 'call' });
    const running = Array.from({ length: CONCURRENT_CREATIONS }, nextClone);
    const oneTooMany = nextClone().then(() => 'one too many');
    void begin();
    await Promise.all(running);
    expect(await Promise.race([oneTooMany, sleep(100, 'the others wait')])).toBe('the others wait');
  },
};

/** The first of the concurrent copies has begun. */
const IN_THE_COPY = duringCopy('clone', 15);

const POWER_FAILURE: Victim[] = ['agent', 'gateway', 'postgres', 'pgbouncer'];

/** Each part alone and all parts together, at each moment. Other files kill single parts by day. */
const CASES = [...VICTIMS.map((victim) => [victim]), POWER_FAILURE].flatMap((victims) =>
  [AT_THE_BOUND, IN_THE_COPY].map((moment) => ({
    who: victims.join(', '),
    when: moment.name,
    victims,
    moment,
  })),
);

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

test.runIf(IS_NIGHTLY).each(CASES)(
  'seven concurrent creations: $who killed, $when',
  async ({ victims, moment }) => {
    const project = await stage.api.project('Crowd');
    const path = `/api/v1/projects/${project.id}/branches`;
    const keys = Array.from({ length: CREATIONS }, () => randomUUID());
    const makeAll = () =>
      keys.map((key, n) =>
        insist(() =>
          stage.api.post<BranchBody>(path, { branch_name: `branch-${n}` }, { 'Idempotency-Key': key }),
        ),
      );
    let first: ReturnType<typeof makeAll> = [];
    await stage.reach(moment, () => {
      first = makeAll();
      return Promise.all(first);
    });

    const answers = await stage.crash(victims, () => [...first, ...makeAll()]);

    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 201));
    const made = answers.map(({ body }) => body.id);
    expect(made.slice(CREATIONS)).toEqual(made.slice(0, CREATIONS));
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    expect(new Set(body.branches.map(({ id }) => id))).toEqual(new Set([project.main_branch.id, ...made]));
    await stage.api.delete(`/api/v1/projects/${project.id}`);
    await stage.atRest();
  },
);
