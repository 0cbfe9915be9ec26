import { eq, sql } from 'drizzle-orm';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { idempotencyKeys, type JobRow, jobs } from '../../../edge/database/schema.ts';
import { HostCallError } from '../../../edge/hosts/host-client.ts';
import { JobRunner } from '../../../edge/jobs/job-runner.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { type Saga, type StepReport, saga } from '../../../edge/jobs/saga.ts';
import type { JobKind } from '../../../shared/project/job.ts';
import { startD1 } from '../../support/records/d1.ts';
import { ACTOR } from '../../support/records/records.ts';

const RESPONSE = { status: 201, body: { made: true } };

let d1: D1Database;
let db: Database;
let woken: number[];
let happened: string[];

beforeAll(async () => {
  d1 = await startD1();
  db = openDatabase(d1);
});
beforeEach(() => {
  woken = [];
  happened = [];
});

/** A saga with one step that the test defines. */
const scripted = (
  step: (job: JobRow) => Promise<unknown>,
  more: Partial<Parameters<typeof saga<JobKind, object>>[0]> = {},
): Saga<JobKind> =>
  saga<JobKind, object>({
    steps: [[{ name: 'step', run: ({ job }) => step(job) }]],
    load: async () => ({}),
    complete: () => [],
    response: () => RESPONSE,
    undo: {
      run: async () => happened.push('undone'),
      record: (_, refused) => {
        happened.push(`refused ${refused}`);
        return [];
      },
    },
    ...more,
  });

const runnerOf = (creation: Saga<JobKind>, deletion = creation) =>
  new JobRunner({
    db,
    settings: {} as never,
    callHost: (hostId) => () => {
      happened.push(`call of ${hostId}`);
      return Promise.reject(new HostCallError('HOST_UNAVAILABLE', 'no host in this test'));
    },
    sagas: {
      'project.create': creation,
      'branch.create': creation,
      'branch.delete': deletion,
      'branch.reset': creation,
      'branch.import': creation,
      'follow.start': creation,
      'follow.cutover': creation,
      'follow.stop': deletion,
      'branch.restore': creation,
      'branch.rename': deletion,
      'branch.diff': deletion,
      'branch.try': deletion,
      'change.rehearse': deletion,
      'change.apply': creation,
      'change.undo': creation,
      'snapshot.create': creation,
      'snapshot.delete': deletion,
      'project.delete': deletion,
      'project.move': creation,
    },
    wakeAt: (timestamp) => woken.push(timestamp),
    begun: () => {},
    changed: () => {},
    created: () => {},
  });

async function openJob(
  kind: JobKind = 'branch.create',
  branchId: string = crypto.randomUUID(),
  age = 0,
): Promise<JobRow> {
  const id = crypto.randomUUID();
  const about = { id, projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = newJob<JobKind>(kind, { branchId }, about, new Date(Date.now() - age));
  await db.insert(jobs).values(job);
  const use = { tenantId: 't', userId: 'u', path: '/', key: id, bodyHash: '' };
  await db.insert(idempotencyKeys).values({ ...use, jobId: id, expiresAt: new Date(Date.now() + 60_000) });
  return job;
}

const written = async ({ id }: JobRow) => (await db.select().from(jobs).where(eq(jobs.id, id)))[0];
const keyOf = async ({ id }: JobRow) =>
  (await db.select().from(idempotencyKeys).where(eq(idempotencyKeys.jobId, id)))[0];
const busy = new HostCallError('SOURCE_BUSY', 'busy');
const away = new HostCallError('POSTGRES_UNAVAILABLE', 'starting');
const full = new HostCallError('HOST_FULL', 'no space');

describe('one attempt', () => {
  test('that succeeds ends the job, stores the response under its key and resolves the wait', async () => {
    const job = await openJob();
    const runner = runnerOf(scripted(async () => {}));
    const end = runner.endOf(job.id, 60_000);
    await runner.start(job);
    expect(await end).toEqual({ ok: true, value: RESPONSE });
    expect(await written(job)).toMatchObject({
      status: 'succeeded',
      error: null,
      steps: [{ name: 'step', status: 'succeeded' }],
    });
    expect(await keyOf(job)).toMatchObject(RESPONSE);
  });

  test('that fails temporarily leaves the job open and schedules a retry, which can succeed', async () => {
    const job = await openJob();
    let tries = 0;
    const runner = runnerOf(
      scripted(async () => {
        if (++tries === 1) throw away;
      }),
    );
    const end = runner.endOf(job.id, 60_000);
    expect(await runner.start(job)).toBeNull();
    expect(await written(job)).toMatchObject({ status: 'running', attempts: 1, error: null });
    expect(woken[0]).toBeLessThan(Date.now() + 1_000);
    await runner.start(job);
    expect(await end).toMatchObject({ ok: true });
    expect(happened).toEqual([]);
  });

  test.each([
    [busy, 'SOURCE_BUSY', true],
    [full, 'HOST_FULL', false],
  ])('that fails with %s is undone, and its key can be used again', async (failure, code, refused) => {
    const job = await openJob();
    const runner = runnerOf(scripted(() => Promise.reject(failure)));
    expect(await runner.start(job)).toMatchObject({
      ok: false,
      failure: { code, fields: { job_id: job.id } },
    });
    expect(happened).toEqual(['undone', `refused ${refused}`]);
    expect(await written(job)).toMatchObject({ status: 'failed', error: { code: failure.code } });
    expect(await keyOf(job)).toBeUndefined();
  });

  test('shows how much of its running step is done, until that has ended', async () => {
    const job = await openJob();
    const held = Promise.withResolvers<void>();
    const runner = runnerOf(
      scripted(() => held.promise, {
        steps: [
          [
            { name: 'first', run: () => held.promise },
            { name: 'last', run: () => held.promise },
          ],
        ],
      }),
    );
    const end = runner.start(job);
    // Of another job, and of one that has not begun.
    runner.report(crypto.randomUUID(), { percent: 7 });
    const shown = (known: StepReport) =>
      expect.poll(
        () => {
          runner.report(job.id, known);
          return written(job).then((row) => row?.steps.map(({ percent, replay }) => ({ percent, replay })));
        },
        // A busy machine makes no test fail.
        { timeout: 60_000 },
      );
    const replay = { bytes: 2 ** 30, replayed_bytes: 2 ** 28, seconds_left: 12 };
    await shown({ percent: 41, replay }).toEqual([{}, { percent: 41, replay }]);
    // The copy of what is recovered follows.
    await shown({ percent: 42 }).toEqual([{}, { percent: 42 }]);
    runner.report(job.id, { percent: 43, replay });
    held.resolve();
    await end;
    runner.report(job.id, { percent: 44 });
    const row = await written(job);
    expect(row?.steps.map(({ status, percent, replay }) => [status, percent, replay])).toEqual([
      ['succeeded', undefined, undefined],
      ['succeeded', undefined, undefined],
    ]);
  });

  test('of a creation that is too old abandons it', async () => {
    const job = await openJob('branch.create', crypto.randomUUID(), 16 * 60_000);
    expect(await runnerOf(scripted(() => Promise.reject(away))).start(job)).toMatchObject({ ok: false });
    expect(happened[0]).toBe('undone');
  });

  test('of a creation that may take longer ends in a success after it was called again', async () => {
    const job = await openJob('branch.create', crypto.randomUUID(), 16 * 60_000);
    let calls = 0;
    const step = async () => {
      calls += 1;
      if (calls === 1) throw new HostCallError('HOST_TIMEOUT', 'no reply within its deadline');
    };
    const runner = runnerOf(scripted(step, { patience: () => 3_600_000 }));
    expect(await runner.start(job)).toBeNull();
    expect(woken).toHaveLength(1);
    expect(await runner.resume(job)).toMatchObject({ ok: true });
    expect(happened).toEqual([]);
    const older = await openJob('branch.create', crypto.randomUUID(), 61 * 60_000);
    calls = 0;
    expect(await runner.start(older)).toMatchObject({ ok: false });
    expect(happened[0]).toBe('undone');
  });

  test('of a job that cannot be undone never abandons it, whatever the failure', async () => {
    const job = await openJob('branch.delete', crypto.randomUUID(), 16 * 60_000);
    const endless = { ...scripted(() => Promise.reject(full)), undo: undefined };
    expect(await runnerOf(endless).start(job)).toBeNull();
    expect(await written(job)).toMatchObject({ status: 'running', error: null });
  });

  test('whose undo fails retries the undo, and never the steps', async () => {
    const job = await openJob();
    let steps = 0;
    let undos = 0;
    const definition = scripted(
      () => {
        steps += 1;
        return Promise.reject(full);
      },
      {
        undo: {
          run: async () => {
            if (++undos === 1) throw away;
          },
          record: () => [],
        },
      },
    );
    expect(await runnerOf(definition).start(job)).toBeNull();
    const later = await written(job);
    expect(later).toMatchObject({ status: 'running', error: { code: 'HOST_FULL' } });
    if (later) expect(await runnerOf(definition).start(later)).toMatchObject({ ok: false });
    expect({ steps, undos }).toEqual({ steps: 1, undos: 2 });
  });

  test('whose success was stored without a reply is not undone, however old it is', async () => {
    const job = await openJob('branch.create', crypto.randomUUID(), 16 * 60_000);
    const runner = runnerOf(
      scripted(async () => {}, {
        response: () => {
          throw new Error('lost');
        },
      }),
    );
    await db.update(jobs).set({ status: 'succeeded' }).where(eq(jobs.id, job.id));
    expect(await runner.start(job)).toBeNull();
    expect(happened).toEqual([]);
    expect(await written(job)).toMatchObject({ status: 'succeeded', error: null });
  });

  test('that a deletion overtakes at its last step is undone, and its response is not stored', async () => {
    const job = await openJob();
    const runner = runnerOf(scripted(async () => {}, { completed: () => sql`false` }));
    expect(await runner.start(job)).toMatchObject({ ok: false, failure: { code: 'NOT_FOUND' } });
    expect(happened[0]).toBe('undone');
    expect(await written(job)).toMatchObject({ status: 'failed' });
    expect(await keyOf(job)).toBeUndefined();
  });

  test('of a job that a deletion has overtaken is undone', async () => {
    const job = await openJob();
    const runner = runnerOf(scripted(async () => {}, { load: async () => null }));
    expect(await runner.start(job)).toMatchObject({ ok: false, failure: { code: 'NOT_FOUND' } });
  });
});

describe('several jobs', () => {
  test('each calls its own host: the project can have moved in between', async () => {
    const runner = runnerOf(
      scripted(async () => {}, {
        steps: [[{ name: 'step', run: ({ callHost }) => callHost('project.size', { project_id: 'p' }) }]],
      }),
    );
    const made = await Promise.all([openJob(), openJob()]);
    for (const [index, job] of made.entries()) await runner.start({ ...job, hostId: `host-${index}` });
    expect(happened).toEqual(['call of host-0', 'call of host-1']);
  });

  test('the same job never runs twice concurrently', async () => {
    const job = await openJob();
    let runs = 0;
    const runner = runnerOf(
      scripted(async () => {
        runs += 1;
      }),
    );
    await Promise.all([runner.start(job), runner.start(job), runner.start(job)]);
    expect(runs).toBe(1);
  });

  test('three creations run in parallel, the others wait in order', async () => {
    let running = 0;
    let most = 0;
    const order: string[] = [];
    const runner = runnerOf(
      scripted(async ({ id }) => {
        order.push(id);
        most = Math.max(most, ++running);
        await new Promise((resolve) => setTimeout(resolve, 20));
        running -= 1;
      }),
    );
    const made = await Promise.all(Array.from({ length: 8 }, () => openJob()));
    await Promise.all(made.map((job) => runner.start(job)));
    expect(most).toBe(3);
    expect(order).toEqual(made.map(({ id }) => id));
  });

  test('a deletion waits for open jobs of the same branch, and the deletion of a project for all jobs', async () => {
    const order: string[] = [];
    const step = (name: string) => async () => {
      order.push(`${name} begins`);
      await new Promise((resolve) => setTimeout(resolve, 30));
      order.push(`${name} ends`);
    };
    const runner = runnerOf(scripted(step('creation')), scripted(step('deletion')));
    const creation = await openJob();
    const [sameBranch, project] = await Promise.all([
      openJob('branch.delete', creation.branchId ?? ''),
      openJob('project.delete'),
    ]);
    await Promise.all([creation, sameBranch, project].map((job) => runner.start(job)));
    expect(order).toEqual(
      ['creation', 'deletion', 'deletion'].flatMap((name) => [`${name} begins`, `${name} ends`]),
    );
  });

  test('a job that ended after it was read is not attempted again, nor after newer work on its branch', async () => {
    const held = Promise.withResolvers<void>();
    const attempts: string[] = [];
    const runner = runnerOf(
      scripted(() => held.promise),
      scripted(async ({ id }) => attempts.push(id)),
    );
    const deletion = await openJob('branch.delete');
    const stale = { ...deletion };
    await runner.start(deletion);
    const restoration = await openJob('branch.restore', deletion.branchId ?? '');
    const newer = runner.start(restoration);
    const again = runner.resume(stale);
    held.resolve();
    expect([await newer, await again]).toMatchObject([{ ok: true }, null]);
    // The reply of its write came late.
    expect(await runner.start(stale)).toEqual({ ok: true, value: RESPONSE });
    expect(await runner.endOf(stale.id, 0)).toEqual({ ok: true, value: RESPONSE });
    expect(attempts).toEqual([deletion.id]);
  });

  test('a job whose failure was stored after it was read is undone', async () => {
    const job = await openJob();
    await db
      .update(jobs)
      .set({ error: { code: 'HOST_FULL', message: '' } })
      .where(eq(jobs.id, job.id));
    expect(await runnerOf(scripted(async () => {})).resume(job)).toMatchObject({ ok: false });
    expect(happened[0]).toBe('undone');
  });

  test('a wait that times out returns null, and the job continues', async () => {
    const job = await openJob();
    const runner = runnerOf(scripted(() => new Promise((resolve) => setTimeout(resolve, 60))));
    const run = runner.start(job);
    expect(await runner.endOf(job.id, 10)).toBeNull();
    expect(await run).toMatchObject({ ok: true });
  });
});
