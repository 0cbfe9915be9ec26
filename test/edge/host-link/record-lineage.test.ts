import { describe, expect, test } from 'vitest';
import { isRemoval, RecordLineage } from '../../../edge/host-link/handshake.ts';

/** A host with these jobs on record. */
function lineage(...recorded: string[]) {
  /** By the time of their creation, in the order given. */
  const jobs = new Map(recorded.map((id, at) => [id, new Date(at)]));
  const logged: string[] = [];
  const delays: Promise<void>[] = [];
  let stored: string[] = [];
  let reads = 0;
  let isAway = false;
  const object = new RecordLineage({
    jobs: {
      get: () => stored,
      put: (ids) => {
        stored = ids;
      },
    },
    recordedAmong: async (ids) => {
      reads += 1;
      if (isAway) throw new Error('D1 is away');
      const found = new Map([...jobs].filter(([id]) => ids.includes(id)));
      await delays.shift();
      return found;
    },
    log: (event) => logged.push(event),
  });
  return {
    jobs,
    logged,
    stored: () => stored,
    /** The next reading of the records comes late. */
    delay: (until: Promise<void>) => delays.push(until),
    reads: () => reads,
    setAway: (away: boolean) => {
      isAway = away;
    },
    works: (jobId: string) => object.remember(jobId),
    drops: (jobId: string | null = 'of the reconciler') => object.permitsRemoval(jobId),
    accept: () => {
      stored = [];
    },
  };
}

test('a removal is what takes away a database or a project', () => {
  for (const method of ['branch.drop', 'branch.keep', 'project.drop', 'snapshot.drop'] as const)
    expect(isRemoval(method)).toBe(true);
  expect(isRemoval('branch.clone')).toBe(false);
});

describe('while the jobs of the host are on record', () => {
  test('databases are dropped, also by a reconciliation that has no job', async () => {
    const host = lineage('job');
    expect(await host.drops()).toBe(true);
    await host.works('job');
    expect(await host.drops()).toBe(true);
    expect(await host.drops(null)).toBe(true);
    expect(host.logged).toEqual([]);
  });

  test('a removal without a job on record changes nothing', async () => {
    const host = lineage('job');
    await host.works('job');
    expect(await host.drops('of the reconciler')).toBe(true);
    expect(await host.drops()).toBe(true);
  });

  test('the records are read once for many jobs, of which the newest stays', async () => {
    const jobs = Array.from({ length: 33 }, (_, at) => `job-${at}`);
    const host = lineage(...jobs);
    for (const job of jobs.slice(0, 32)) for (let call = 0; call < 3; call++) await host.works(job);
    expect(host.reads()).toBe(0);
    await host.works('job-32');
    expect(host.reads()).toBe(1);
    expect(host.stored()).toEqual(['job-31', 'job-32']);
  });
});

describe('while one is not', () => {
  test('nothing is removed', async () => {
    const host = lineage('before', 'lost');
    await host.works('before');
    await host.works('lost');
    host.jobs.delete('lost');
    expect(await host.drops()).toBe(false);
    expect(host.logged).toEqual(['host.records_went_back']);
  });

  test('a job that outlasts a later one hides nothing', async () => {
    const host = lineage('long', 'later');
    await host.works('long');
    await host.works('later');
    expect(await host.drops()).toBe(true);
    await host.works('long');
    expect(await host.drops()).toBe(true);
    host.jobs.delete('later');
    expect(await host.drops()).toBe(false);
  });

  test('a check that outlasts a later one hides nothing', async () => {
    const host = lineage('older', 'later', 'last');
    await host.works('older');
    const held = Promise.withResolvers<void>();
    host.delay(held.promise);
    const early = host.drops();
    await host.works('later');
    expect(await host.drops()).toBe(true);
    await host.works('last');
    held.resolve();
    expect(await early).toBe(true);
    expect(host.stored()).toEqual(['older', 'later', 'last']);
    for (const lost of ['later', 'last']) {
      const created = host.jobs.get(lost) ?? new Date();
      host.jobs.delete(lost);
      expect(await host.drops()).toBe(false);
      host.jobs.set(lost, created);
    }
  });

  test('a deletion counts as work', async () => {
    const host = lineage('deletion');
    await host.drops('deletion');
    host.jobs.delete('deletion');
    expect(await host.drops()).toBe(false);
  });

  test('a new job is worked for, and changes nothing', async () => {
    const host = lineage('lost', 'new');
    await host.works('lost');
    host.jobs.delete('lost');
    await host.works('new');
    expect(await host.drops()).toBe(false);
    expect(await host.drops()).toBe(false);
  });

  test('no more jobs are remembered than are read together', async () => {
    const jobs = Array.from({ length: 40 }, (_, at) => `job-${at}`);
    const host = lineage(...jobs);
    for (const job of jobs.slice(0, 32)) await host.works(job);
    host.jobs.delete('job-31');
    for (const job of jobs.slice(32)) await host.works(job);
    expect(host.stored()).toEqual(jobs.slice(0, 32));
    expect(await host.drops()).toBe(false);
  });

  test('a job is remembered once while the records cannot be read', async () => {
    const jobs = Array.from({ length: 34 }, (_, at) => `job-${at}`);
    const host = lineage(...jobs);
    for (const job of jobs.slice(0, 32)) await host.works(job);
    host.setAway(true);
    await Promise.all([host.works('job-32'), host.works('job-32'), host.works('job-33')]);
    expect(host.stored()).toEqual(jobs);
    host.setAway(false);
    host.jobs.delete('job-33');
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
