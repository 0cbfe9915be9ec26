import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { CpuAccount, type ProcessSample, type SeenProcess } from '../../../agent/measurement/cpu-account.ts';

const NO_WORK = { active_ms: 0, sessions: 0, parallel_workers: 0 };
const client = (key: string, database: string, cpu: number, activeMs = 0): SeenProcess => ({
  key,
  database,
  kind: 'client',
  cpu,
  activeMs,
});

const sample = (second: number, ended: number, processes: SeenProcess[] = []): ProcessSample => ({
  at: second * 1000,
  postmaster: '1',
  ended,
  processes,
});

/** Adds the samples, then settles with this work. */
function bill(samples: ProcessSample[], work: Record<string, Partial<typeof NO_WORK>>) {
  const account = new CpuAccount(null);
  for (const one of samples) account.addSample(one);
  const whole = Object.entries(work).map(([database, some]) => [database, { ...NO_WORK, ...some }] as const);
  return Object.fromEntries(account.settle(new Map(whole)));
}

describe('a long session', () => {
  test('is billed for its CPU time since the first sample', () => {
    const samples = [sample(0, 0, [client('s', 'a', 5)]), sample(1, 0, [client('s', 'a', 5.4, 50)])];
    expect(bill(samples, { a: {} }).a).toBeCloseTo(0.4);
  });

  test('that started after the first sample is billed for all its CPU time', () => {
    expect(bill([sample(0, 0), sample(1, 0, [client('s', 'a', 0.7)])], { a: { sessions: 1 } }).a).toBe(0.7);
  });

  test('that ended is billed for the time after its last sample too', () => {
    const samples = [
      sample(0, 0, [client('s', 'a', 0)]),
      sample(1, 0, [client('s', 'a', 1, 900)]),
      sample(2, 1.5),
    ];
    expect(bill(samples, { a: { active_ms: 1500 } }).a).toBeCloseTo(1.5);
  });

  test('that waits is not billed for the CPU time of others', () => {
    const waiting = (second: number) => client('s', 'waits', 0.01, second * 1000);
    const samples = [0, 1, 2, 3].map((second) => sample(second, second * 0.5, [waiting(second)]));
    const billed = bill(samples, { waits: { active_ms: 3000 }, works: { active_ms: 1400, sessions: 30 } });
    expect(billed.waits).toBeCloseTo(0);
    expect(billed.works).toBeCloseTo(1.5);
  });
});

test('a statement that waited during several settlements is not billed when its time is reported at its end', () => {
  const account = new CpuAccount(null);
  const waiting = (second: number) => client('s', 'waits', 0.01, second * 1000);
  account.addSample(sample(0, 0, [waiting(0)]));
  for (const second of [1, 2, 3]) {
    account.addSample(sample(second, 0, [waiting(second)]));
    account.settle(new Map([['waits', NO_WORK]]));
  }
  account.addSample(sample(4, 1, [client('s', 'waits', 0.01)]));
  const settled = account.settle(
    new Map([
      ['waits', { ...NO_WORK, active_ms: 3000, sessions: 1 }],
      ['works', { ...NO_WORK, active_ms: 960, sessions: 10 }],
    ]),
  );
  expect(settled.get('waits')).toBeLessThan(0.01);
  expect(settled.get('works')).toBeGreaterThan(0.99);
});

describe('short sessions', () => {
  test('share the CPU time of ended processes in proportion to their work', () => {
    const samples = [sample(0, 10), sample(1, 13)];
    const billed = bill(samples, {
      a: { active_ms: 1920, sessions: 20 },
      b: { active_ms: 960, sessions: 10 },
    });
    expect(billed.a).toBeCloseTo(2);
    expect(billed.b).toBeCloseTo(1);
  });

  test('are billed for their logins first, because only statements take longer on a busy machine', () => {
    // 4 ms a login; statements of 300 and 100 ms of CPU, active for 1,200 and 400.
    const billed = bill([sample(0, 0), sample(1, 0.84)], {
      large: { active_ms: 1200, sessions: 10 },
      small: { active_ms: 400, sessions: 100 },
    });
    expect(billed.large).toBeCloseTo(0.34);
    expect(billed.small).toBeCloseTo(0.5);
  });

  test('reveal the cost of a login on this machine', () => {
    const account = new CpuAccount(null);
    const large = { active_ms: 3000, sessions: 100, parallel_workers: 0 };
    const small = { ...NO_WORK, sessions: 1000 };
    account.addSample(sample(0, 0));
    account.settle(new Map());
    account.addSample(sample(1, 2));
    account.settle(new Map([['small', small]]));
    account.addSample(sample(2, 7.2));
    const settled = account.settle(new Map(Object.entries({ large, small })));
    expect(settled.get('large')).toBeCloseTo(3.2);
    expect(settled.get('small')).toBeCloseTo(2);
  });

  test('do not reveal it when the server was restarted', () => {
    const account = new CpuAccount(null);
    const work = { active_ms: 920, sessions: 100, parallel_workers: 0 };
    account.addSample(sample(0, 0));
    account.settle(new Map());
    account.addSample({ ...sample(1, 0), postmaster: '2' });
    account.settle(new Map([['a', work]]));
    account.addSample({ ...sample(2, 0.86), postmaster: '2' });
    const both = { a: { ...work, sessions: 10 }, b: { ...NO_WORK, sessions: 90 } };
    expect(account.settle(new Map(Object.entries(both))).get('b')).toBeCloseTo(0.36);
  });

  test('are not billed for far more than their work', () => {
    expect(bill([sample(0, 0), sample(1, 60)], { a: { active_ms: 96, sessions: 1 } }).a).toBeCloseTo(0.2);
  });

  test('without any, the CPU time of ended processes is not billed', () => {
    expect(bill([sample(0, 0), sample(1, 60)], { a: { active_ms: 500 } })).toEqual({});
  });
});

test('a restarted agent continues from its stored state', () => {
  const first = new CpuAccount(null);
  first.addSample(sample(0, 0, [client('s', 'a', 1)]));
  first.settle(new Map());
  const second = new CpuAccount(structuredClone(first.state));
  second.addSample(sample(600, 0.5, [client('s', 'a', 3)]));
  const billed = second.settle(new Map([['b', { ...NO_WORK, active_ms: 496, sessions: 1 }]]));
  expect(billed.get('a')).toBe(2);
  expect(billed.get('b')).toBeCloseTo(0.5);
});

test('a restarted server has only new processes', () => {
  const account = new CpuAccount(null);
  account.addSample(sample(0, 100, [client('s', 'a', 50)]));
  account.addSample({ ...sample(1, 0.3, [client('s', 'a', 0.2)]), postmaster: '2' });
  const billed = account.settle(new Map([['b', { ...NO_WORK, active_ms: 296, sessions: 1 }]]));
  expect(billed.get('a')).toBe(0.2);
  expect(billed.get('b')).toBeCloseTo(0.3);
});

/** Processes that use CPU time for a while. */
const Life = fc.record({
  database: fc.constantFrom('a', 'b', 'c'),
  from: fc.integer({ min: 0, max: 20 }),
  lasts: fc.integer({ min: 0, max: 10 }),
  cpuPerSecond: fc.double({ min: 0, max: 1, noNaN: true }),
});

test('bills never exceed the CPU time used, and are never negative', () => {
  fc.assert(
    fc.property(
      fc.array(Life, { maxLength: 40 }),
      fc.array(fc.integer({ min: 1, max: 3 })),
      (lives, steps) => {
        const account = new CpuAccount(null);
        account.addSample(sample(0, 0));
        let second = 0.5;
        let billed = 0;
        for (const step of [...steps, 40]) {
          second += step;
          const used = (life: (typeof lives)[number]) =>
            Math.max(0, Math.min(second - life.from, life.lasts)) * life.cpuPerSecond;
          const alive = lives.filter(({ from, lasts }) => from <= second && second < from + lasts);
          const ended = lives.filter(({ from, lasts }) => from + lasts <= second);
          account.addSample(
            sample(
              second,
              ended.reduce((sum, life) => sum + used(life), 0),
              alive.map((life) => client(String(lives.indexOf(life)), life.database, used(life), 1)),
            ),
          );
          const work = { active_ms: 5000, sessions: 3, parallel_workers: 0 };
          const settled = account.settle(new Map(['a', 'b', 'c'].map((database) => [database, work])));
          for (const seconds of settled.values()) {
            expect(seconds).toBeGreaterThanOrEqual(0);
            billed += seconds;
          }
        }
        const all = lives.reduce((sum, { lasts, cpuPerSecond }) => sum + lasts * cpuPerSecond, 0);
        expect(billed).toBeLessThanOrEqual(all + 1e-6);
      },
    ),
  );
});
