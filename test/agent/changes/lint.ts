import { describe, expect, test } from 'vitest';
import { findingsOf, LINT_RULES } from '../../../agent/changes/lint.ts';
import { wordsOf } from '../../../agent/changes/plan.ts';
import { connect, type HostWithProject } from '../../support/host/host-project.ts';

/** Statements that a rule finds and advises, in a schema `s` of its own with a table of 50 rows. */
interface Pair {
  base?: string;
  found: string;
  instead: string[];
  /** The only relation that counts. */
  on?: string;
}

const CONCURRENTLY = (found: string, base = ''): Pair => ({
  base,
  found,
  instead: [found.replace(/\b(INDEX|TABLE|VIEW) /, '$1 CONCURRENTLY ')],
});
const PARTITION = `
  CREATE TABLE part (id int, day date NOT NULL) PARTITION BY RANGE (day);
  CREATE TABLE p1 (LIKE part); INSERT INTO p1 SELECT n, '2026-05-01' FROM generate_series(1, 50) AS n`;
const BOUNDS = "FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')";

const PAIRS: Record<string, Pair> = {
  'index-not-concurrent': CONCURRENTLY('CREATE INDEX i ON book (title)'),
  'drop-index-not-concurrent': CONCURRENTLY('DROP INDEX i', 'CREATE INDEX i ON book (title)'),
  'reindex-not-concurrent': CONCURRENTLY('REINDEX TABLE book', 'CREATE INDEX i ON book (title)'),
  'foreign-key-validated': {
    base: 'CREATE TABLE author (id int PRIMARY KEY); INSERT INTO author SELECT generate_series(1, 50)',
    found: 'ALTER TABLE book ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES author',
    instead: [
      'ALTER TABLE book ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES author NOT VALID',
      'ALTER TABLE book VALIDATE CONSTRAINT f',
    ],
  },
  'check-validated': {
    found: 'ALTER TABLE book ADD CONSTRAINT c CHECK (id > 0)',
    instead: [
      'ALTER TABLE book ADD CONSTRAINT c CHECK (id > 0) NOT VALID',
      'ALTER TABLE book VALIDATE CONSTRAINT c',
    ],
  },
  'set-not-null': {
    found: 'ALTER TABLE book ALTER title SET NOT NULL',
    instead: [
      'ALTER TABLE book ADD CONSTRAINT n NOT NULL title NOT VALID',
      'ALTER TABLE book VALIDATE CONSTRAINT n',
    ],
  },
  'unique-builds-index': {
    found: 'ALTER TABLE book ADD CONSTRAINT u UNIQUE (id)',
    instead: [
      'CREATE UNIQUE INDEX CONCURRENTLY i ON book (id)',
      'ALTER TABLE book ADD CONSTRAINT u UNIQUE USING INDEX i',
    ],
  },
  'primary-key-builds-index': {
    found: 'ALTER TABLE book ADD PRIMARY KEY (id)',
    instead: [
      'CREATE UNIQUE INDEX CONCURRENTLY i ON book (id)',
      'ALTER TABLE book ADD CONSTRAINT n NOT NULL id NOT VALID',
      'ALTER TABLE book VALIDATE CONSTRAINT n',
      'ALTER TABLE book ADD CONSTRAINT p PRIMARY KEY USING INDEX i',
    ],
  },
  'type-rewrites': {
    found: 'ALTER TABLE book ALTER id TYPE bigint',
    instead: ['ALTER TABLE book ADD wide bigint', 'UPDATE book SET wide = id'],
  },
  'volatile-default': {
    found: 'ALTER TABLE book ADD key uuid DEFAULT gen_random_uuid()',
    instead: [
      'ALTER TABLE book ADD key uuid',
      'ALTER TABLE book ALTER key SET DEFAULT gen_random_uuid()',
      'UPDATE book SET key = gen_random_uuid()',
    ],
  },
  'stored-generated': {
    found: 'ALTER TABLE book ADD double int GENERATED ALWAYS AS (id * 2) STORED',
    instead: ['ALTER TABLE book ADD double int GENERATED ALWAYS AS (id * 2) VIRTUAL'],
  },
  'refresh-not-concurrent': CONCURRENTLY(
    'REFRESH MATERIALIZED VIEW titles',
    'CREATE MATERIALIZED VIEW titles AS SELECT id, title FROM book; CREATE UNIQUE INDEX ON titles (id)',
  ),
  'detach-not-concurrent': {
    base: `${PARTITION}; ALTER TABLE part ATTACH PARTITION p1 ${BOUNDS}`,
    // The partition itself is locked by both.
    on: 'part',
    found: 'ALTER TABLE part DETACH PARTITION p1',
    instead: ['ALTER TABLE part DETACH PARTITION p1 CONCURRENTLY'],
  },
  'attach-scans': {
    base: PARTITION,
    found: `ALTER TABLE part ATTACH PARTITION p1 ${BOUNDS}`,
    instead: [
      "ALTER TABLE p1 ADD CONSTRAINT b CHECK (day >= '2026-01-01' AND day < '2027-01-01') NOT VALID",
      'ALTER TABLE p1 VALIDATE CONSTRAINT b',
      `ALTER TABLE part ATTACH PARTITION p1 ${BOUNDS}`,
    ],
  },
  'full-vacuum': { found: 'VACUUM FULL book', instead: ['VACUUM book'] },
};

/** Rules whose advice has the same statement, once something else was done before it. */
const FOUND_AGAIN = ['attach-scans'];

const MODES = ['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'];
const ALONE = /CONCURRENTLY|^VACUUM/;

export function describeLint(stage: () => HostWithProject): void {
  /** The strongest lock that a statement holds on what was there, and the rows that it reads with it. */
  async function cost(
    schema: string,
    sql: string,
    on: string | null,
  ): Promise<{ mode: number; rows: number }> {
    const [session, observer] = await Promise.all(
      [1, 2].map(() => connect(stage().servers.host, 'direct', stage().main, 'owner')),
    );
    if (!session || !observer) throw new Error('no session');
    try {
      await session.query(`SET search_path = ${schema}`);
      const { rows: own } = await session.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
      const modeNow = async () => {
        const { rows } = await observer.query<{ mode: string }>(
          `SELECT mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation
           WHERE pid = $1 AND granted AND relnamespace = $2::regnamespace AND relkind IN ('r', 'p', 'm')
             AND ($3::text IS NULL OR relname = $3)`,
          [own[0]?.pid, schema, on],
        );
        return Math.max(-1, ...rows.map(({ mode }) => MODES.indexOf(mode)));
      };
      if (ALONE.test(sql)) {
        let mode = -1;
        let isOver = false;
        const watching = (async () => {
          while (!isOver) mode = Math.max(mode, await modeNow());
        })();
        await session.query(sql);
        isOver = true;
        await watching;
        // A full vacuum is over before it is seen.
        return { mode: sql.startsWith('VACUUM FULL') ? MODES.length - 1 : mode, rows: 0 };
      }
      await session.query('BEGIN');
      await session.query(sql);
      const { rows: read } = await session.query<{ rows: number }>(
        `SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0)::int AS rows
         FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'm')`,
        [schema],
      );
      const mode = await modeNow();
      await session.query('COMMIT');
      return { mode, rows: mode === -1 ? 0 : (read[0]?.rows ?? 0) };
    } finally {
      await Promise.all([session.end(), observer.end()]);
    }
  }

  const make = async (schema: string, base = '') => {
    const session = await connect(stage().servers.host, 'direct', stage().main, 'owner');
    await session.query(`CREATE SCHEMA ${schema}; SET search_path = ${schema};
      CREATE TABLE book AS SELECT n AS id, 'title ' || n AS title FROM generate_series(1, 50) AS n; ${base}`);
    await session.end();
  };

  describe('a rule', () => {
    test('has a pair of statements', () => {
      expect(Object.keys(PAIRS)).toEqual(Object.keys(LINT_RULES));
      expect(Object.keys(PAIRS)).toHaveLength(15);
    });

    test.each(Object.entries(PAIRS))(
      '%s avoids a lock',
      async (rule, { base, found, instead, on = null }) => {
        const schema = `lint_${rule.replaceAll('-', '_')}`;
        const rulesOf = (sql: string) => findingsOf(wordsOf(sql)).map((finding) => finding.rule);
        expect(rulesOf(found)).toContain(rule);
        if (!FOUND_AGAIN.includes(rule)) expect(instead.flatMap(rulesOf)).toEqual([]);
        await make(schema, base);
        const unsafe = await cost(schema, found, on);
        await make(`${schema}_safe`, base);
        const safe = { mode: -1, rows: 0 };
        for (const sql of instead) {
          const { mode, rows } = await cost(`${schema}_safe`, sql, on);
          safe.mode = Math.max(safe.mode, mode);
          safe.rows += rows;
        }
        expect(unsafe.mode).toBeGreaterThan(-1);
        // With a lock that blocks writers no row is read, or the lock is a weaker one.
        if (unsafe.rows > 0) expect(safe.rows).toBe(0);
        else expect(safe.mode).toBeLessThan(unsafe.mode);
      },
    );
  });
}
