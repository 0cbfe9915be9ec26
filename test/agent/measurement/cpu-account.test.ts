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

/** Looks, then settles with this work. */
function charge(samples: ProcessSample[], work: Record<string, Partial<typeof NO_WORK>>) {
  const account = new CpuAccount(null);
  for (const one of samples) account.addSample(one);
  const whole = Object.entries(work).map(([database, some]) => [database, { ...NO_WORK, ...some }] as const);
  return Object.fromEntries(account.settle(new Map(whole)));
}

describe('a session that lasts', () => {
  test('is charged with what it used, from the first look on', () => {
    const looks = [sample(0, 0, [client('s', 'a', 5)]), sample(1, 0, [client('s', 'a', 5.4, 50)])];
    expect(charge(looks, { a: {} }).a).toBeCloseTo(0.4);
  });

  test('that came after the first look is charged with all it used', () => {
    expect(charge([sample(0, 0), sample(1, 0, [client('s', 'a', 0.7)])], { a: { sessions: 1 } }).a).toBe(0.7);
  });

  test('and ends is charged with its last bit', () => {
    const looks = [
      sample(0, 0, [client('s', 'a', 0)]),
      sample(1, 0, [client('s', 'a', 1, 900)]),
      sample(2, 1.5),
    ];
    expect(charge(looks, { a: { active_ms: 1500 } }).a).toBeCloseTo(1.5);
  });

  test('that waits attracts nothing of what others used', () => {
    const waiting = (second: number) => client('s', 'waits', 0.01, second * 1000);
    const looks = [0, 1, 2, 3].map((second) => sample(second, second * 0.5, [waiting(second)]));
    const charged = charge(looks, { waits: { active_ms: 3000 }, works: { active_ms: 1400, sessions: 30 } });
    expect(charged.waits).toBeCloseTo(0);
    expect(charged.works).toBeCloseTo(1.5);
  });
});

test('a statement that waits through settlements attracts nothing when its time is reported, at its end', () => {
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

describe('sessions that come and go', () => {
  test('share what ended processes used by their work', () => {
    const looks = [sample(0, 10), sample(1, 13)];
    const charged = charge(looks, {
      a: { active_ms: 1920, sessions: 20 },
      b: { active_ms: 960, sessions: 10 },
    });
    expect(charged.a).toBeCloseTo(2);
    expect(charged.b).toBeCloseTo(1);
  });

  test('on a busy machine pay for their logins first: only statements take longer there', () => {
    // 4 ms a login; statements of 300 and 100 ms of CPU, active for 1,200 and 400.
    const charged = charge([sample(0, 0), sample(1, 0.84)], {
      large: { active_ms: 1200, sessions: 10 },
      small: { active_ms: 400, sessions: 100 },
    });
    expect(charged.large).toBeCloseTo(0.34);
    expect(charged.small).toBeCloseTo(0.5);
  });

  test('show what a login takes on this machine', () => {
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

  test('before the server was started anew show nothing of it', () => {
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

  test('are not charged with far more than their work: what is left over was not theirs', () => {
    expect(charge([sample(0, 0), sample(1, 60)], { a: { active_ms: 96, sessions: 1 } }).a).toBeCloseTo(0.2);
  });

  test('without any, nobody is charged with what ended', () => {
    expect(charge([sample(0, 0), sample(1, 60)], { a: { active_ms: 500 } })).toEqual({});
  });
});

test('an agent that starts anew goes on from what it wrote down', () => {
  const first = new CpuAccount(null);
  first.addSample(sample(0, 0, [client('s', 'a', 1)]));
  first.settle(new Map());
  const second = new CpuAccount(structuredClone(first.state));
  second.addSample(sample(600, 0.5, [client('s', 'a', 3)]));
  const charged = second.settle(new Map([['b', { ...NO_WORK, active_ms: 496, sessions: 1 }]]));
  expect(charged.get('a')).toBe(2);
  expect(charged.get('b')).toBeCloseTo(0.5);
});

test('a server that was started anew has all its processes anew', () => {
  const account = new CpuAccount(null);
  account.addSample(sample(0, 100, [client('s', 'a', 50)]));
  account.addSample({ ...sample(1, 0.3, [client('s', 'a', 0.2)]), postmaster: '2' });
  const charged = account.settle(new Map([['b', { ...NO_WORK, active_ms: 296, sessions: 1 }]]));
  expect(charged.get('a')).toBe(0.2);
  expect(charged.get('b')).toBeCloseTo(0.3);
});

/** Processes of which each burns for a while, as a kernel and a server would tell of them at every look. */
const Life = fc.record({
  database: fc.constantFrom('a', 'b', 'c'),
  from: fc.integer({ min: 0, max: 20 }),
  lasts: fc.integer({ min: 0, max: 10 }),
  cpuPerSecond: fc.double({ min: 0, max: 1, noNaN: true }),
});

test('never is more charged than was used, and never less than nothing', () => {
  fc.assert(
    fc.property(
      fc.array(Life, { maxLength: 40 }),
      fc.array(fc.integer({ min: 1, max: 3 })),
      (lives, steps) => {
        const account = new CpuAccount(null);
        account.addSample(sample(0, 0));
        let second = 0.5;
        let charged = 0;
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
            charged += seconds;
          }
        }
        const all = lives.reduce((sum, { lasts, cpuPerSecond }) => sum + lasts * cpuPerSecond, 0);
        expect(charged).toBeLessThanOrEqual(all + 1e-6);
      },
    ),
  );
});
