import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  addChange,
  cacheHitRatio,
  changeSince,
  type Statistics,
  type Totals,
  ZERO_TOTALS,
} from '../../../agent/measurement/counters.ts';

const NOTHING_COUNTED: Statistics = {
  database: '16384',
  database_reset: null,
  server_started: 'at noon',
  shared_reset: 'at initdb',
  committed: 0,
  rolled_back: 0,
  fetched: 0,
  inserted: 0,
  updated: 0,
  deleted: 0,
  blocks_hit: 0,
  blocks_read: 0,
  sessions: 0,
  session_ms: 0,
  active_ms: 0,
  parallel_workers: 0,
};
const statistics = (given: Partial<Statistics>): Statistics => ({ ...NOTHING_COUNTED, ...given });
const nothingElse = { cpu_seconds: 0, connections: 0 };

/** The totals after each reading. */
function totalsOver(readings: readonly Statistics[]): Totals[] {
  let seen: Statistics | null = null;
  let totals = ZERO_TOTALS;
  return readings.map((now) => {
    totals = addChange(totals, changeSince(seen, now), nothingElse);
    seen = now;
    return totals;
  });
}

const Work = fc.record({ inserted: fc.nat(1000), deleted: fc.nat(1000), session_ms: fc.nat(1000) });
/** Events before a reading: clients work, possibly after a reset of the statistics. */
const Event = fc.record({
  work: Work,
  loss: fc.constantFrom(null, 'crash', 'reset', 'restart', 'operator resets shared'),
});

/** Readings as PostgreSQL would report them, and the true work of its clients. */
function play(
  events: { work: Pick<Statistics, 'inserted' | 'deleted' | 'session_ms'>; loss: string | null }[],
) {
  let now = NOTHING_COUNTED;
  let inserted = 0;
  const readings = events.map(({ work, loss }, index) => {
    const { database, database_reset, server_started, shared_reset } = now;
    if (loss === 'crash') {
      now = statistics({ server_started: `start ${index}`, shared_reset: `crash ${index}` });
    } else if (loss === 'reset') {
      now = statistics({ database, server_started, shared_reset, database_reset: `reset ${index}` });
    } else if (loss === 'restart') {
      now = { ...now, database_reset, server_started: `start ${index}` };
    } else if (loss !== null) {
      now = { ...now, shared_reset: `reset ${index}` };
    }
    now = {
      ...now,
      inserted: now.inserted + work.inserted,
      deleted: now.deleted + work.deleted,
      session_ms: now.session_ms + work.session_ms,
    };
    if (work.session_ms > 0) inserted += work.inserted;
    return now;
  });
  return { readings, inserted };
}

describe('totals', () => {
  test('equal the work of clients after any sequence of resets', () => {
    fc.assert(
      fc.property(fc.array(Event), (events) => {
        const { readings, inserted } = play(events);
        expect(totalsOver(readings).at(-1)?.inserted ?? 0).toBe(inserted);
      }),
    );
  });

  test('never go down', () => {
    fc.assert(
      fc.property(fc.array(fc.record({ inserted: fc.nat(), session_ms: fc.nat() })), (readings) => {
        const inserted = totalsOver(readings.map(statistics)).map((totals) => totals.inserted);
        expect(inserted).toEqual(inserted.toSorted((a, b) => a - b));
      }),
    );
  });

  test('continue with another database of the same name', () => {
    const first = statistics({ inserted: 5, session_ms: 1 });
    const second = statistics({ database: '16999', inserted: 7, session_ms: 2 });
    expect(totalsOver([first, second]).at(-1)?.inserted).toBe(12);
  });

  test('exclude the work of autovacuum while no client was connected', () => {
    const client = statistics({ committed: 5, updated: 1, session_ms: 10 });
    const autovacuum = { ...client, committed: 7, updated: 3, blocks_hit: 73 };
    expect(totalsOver([client, autovacuum]).at(-1)).toMatchObject({ committed: 5, updated: 1 });
  });

  test('exclude the transactions of logins', () => {
    const now = statistics({ committed: 12, sessions: 4, session_ms: 9 });
    expect(totalsOver([now]).at(-1)?.committed).toBe(8);
  });
});

describe('the cache hit ratio', () => {
  const ratioOf = (given: Partial<Statistics>) => cacheHitRatio(changeSince(null, statistics(given)));

  test('covers the blocks that clients read', () => {
    expect(ratioOf({ blocks_hit: 3, blocks_read: 1, session_ms: 1 })).toBe(0.75);
    expect(ratioOf({ blocks_hit: 3, blocks_read: 1 })).toBeNull();
    expect(ratioOf({ session_ms: 1 })).toBeNull();
  });
});
