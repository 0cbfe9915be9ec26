import { describe, expect, test } from 'vitest';
import { RecordLineage } from '../../../edge/host-link/record-lineage.ts';
import type { Method, Params } from '../../../shared/protocol/operations.ts';

const BRANCH = { project_id: 'p', branch_id: 'b', database: 'db_b' };

/** A host with these jobs on record, of whose object the memory is lost with `evict`. */
function lineage(...recorded: string[]) {
  /** By the time of their creation, in the order given. */
  const jobs = new Map(recorded.map((id, at) => [id, new Date(at)]));
  const logged: string[] = [];
  const delays = new Map<string, Promise<void>>();
  let last: string | undefined;
  let reads = 0;
  const open = () =>
    new RecordLineage({
      lastJob: {
        get: () => last,
        put: (id) => {
          last = id;
        },
      },
      recordedAmong: async (ids) => {
        reads += 1;
        const found = new Map([...jobs].filter(([id]) => ids.includes(id)));
        await Promise.all(ids.map((id) => delays.get(id)));
        return found;
      },
      log: (event) => logged.push(event),
    });
  let object = open();
  const call = (method: Method, params: object) => object.admits(method, params as Params<Method>);
  return {
    jobs,
    logged,
    /** The records that include this job come late. */
    delay: (job: string, until: Promise<void>) => delays.set(job, until),
    reads: () => reads,
    evict: () => {
      object = open();
    },
    works: (job_id: string) => call('branch.finalize', { job_id, ...BRANCH }),
    drops: (method: Method = 'branch.drop') => call(method, { job_id: 'of the reconciler', ...BRANCH }),
    keeps: (job_id: string) => call('branch.keep', { job_id, ...BRANCH }),
    accept: () => {
      last = undefined;
    },
  };
}

describe('while the last job of the host is on record', () => {
  test('databases are dropped, also by a reconciliation that has no job', async () => {
    const host = lineage('job');
    expect(await host.drops()).toBe(true);
    expect(await host.works('job')).toBe(true);
    expect(await host.drops()).toBe(true);
    expect(await host.drops()).toBe(true);
    expect(host.logged).toEqual([]);
  });

  test('a call without a job on record changes nothing', async () => {
    const host = lineage('job');
    await host.works('job');
    expect(await host.keeps('of the reconciler')).toBe(true);
    expect(await host.drops()).toBe(true);
  });

  test('a job costs one query, however often the host is called for it', async () => {
    const host = lineage('first', 'second');
    for (const job of ['first', 'second', 'first', 'second', 'second']) await host.works(job);
    expect(host.reads()).toBe(2);
  });

  test('calls of one job that come together read the records once', async () => {
    const host = lineage('a', 'b');
    expect(await Promise.all([host.works('b'), host.works('b')])).toEqual([true, true]);
    expect(host.reads()).toBe(1);
    host.evict();
    await host.works('b');
    expect(host.reads()).toBe(2);
  });
});

describe('while it is not', () => {
  test.each(['branch.drop', 'branch.keep', 'project.drop', 'snapshot.drop'] as const)(
    '%s is not sent',
    async (method) => {
      const host = lineage('before', 'lost');
      await host.works('before');
      await host.works('lost');
      host.jobs.delete('lost');
      host.evict();
      expect(await host.drops(method)).toBe(false);
      expect(host.logged).toEqual(['host.records_went_back']);
    },
  );

  test('a job that outlasts a later one hides nothing', async () => {
    const host = lineage('long', 'later');
    await host.works('long');
    await host.works('later');
    host.evict();
    await host.works('long');
    host.jobs.delete('later');
    expect(await host.drops()).toBe(false);
  });

  test('a job whose check outlasts that of a later one hides nothing', async () => {
    const host = lineage('before', 'older', 'later');
    await host.works('before');
    const held = Promise.withResolvers<void>();
    host.delay('older', held.promise);
    const older = host.works('older');
    await host.works('later');
    held.resolve();
    expect(await older).toBe(true);
    host.jobs.delete('later');
    host.evict();
    expect(await host.drops()).toBe(false);
  });

  test('a deletion counts as work', async () => {
    const host = lineage('deletion');
    await host.keeps('deletion');
    host.jobs.delete('deletion');
    expect(await host.drops()).toBe(false);
  });

  test('a new job is worked for, and changes nothing', async () => {
    const host = lineage('lost', 'new');
    await host.works('lost');
    host.jobs.delete('lost');
    expect(await host.works('new')).toBe(true);
    expect(await host.drops()).toBe(false);
    host.evict();
    expect(await host.drops()).toBe(false);
  });

  test('it ends when later records are restored, or these are accepted', async () => {
    const restored = lineage('lost');
    await restored.works('lost');
    restored.jobs.delete('lost');
    expect(await restored.drops()).toBe(false);
    restored.jobs.set('lost', new Date());
    expect(await restored.drops()).toBe(true);

    const accepted = lineage('lost');
    await accepted.works('lost');
    accepted.jobs.delete('lost');
    accepted.accept();
    expect(await accepted.drops()).toBe(true);
  });
});
