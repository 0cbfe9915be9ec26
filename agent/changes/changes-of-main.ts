import type { MainChange } from '../../shared/protocol/change-operations.ts';
import { type ComparisonLogin, readAsLogin } from '../difference/schema/comparison-login.ts';
import type { ProofHost } from '../difference/schema/prove-statements.ts';
import type { Queryable } from '../postgres/connect.ts';

/**
 * Changes of `main` since a branch was made of it, which a schema difference would undo. A clone has the rows of the catalogs
 * of its source, with their transaction ids: a row of `main` that is younger than the clone was written since. While it was
 * cloned, nobody else was in `main`.
 */

const READ_WITHIN_MS = 7_000;
/** A chain of clones longer than this is not followed. */
const DEPTH_MAX = 100;
const REPORTED_MAX = 200;

/** The transaction that recorded the clone of `main` that a branch comes from, over snapshots and other branches. */
const CLONED = `
  WITH RECURSIVE ancestry AS (
    SELECT 1 AS depth, oid, source, xmin FROM database_origin
    WHERE oid = (SELECT oid FROM pg_database WHERE datname = $1)
    UNION ALL
    SELECT depth + 1, origin.oid, origin.source, origin.xmin
    FROM ancestry JOIN database_origin AS origin ON origin.oid = ancestry.source WHERE depth < ${DEPTH_MAX}
  )
  SELECT ancestry.xmin::text FROM ancestry JOIN pg_database ON pg_database.oid = source WHERE datname = $2`;

const DROPPED = 'dropped';

/**
 * Objects by catalog, id and column. `print` is what a change of the object changes, where PostgreSQL writes the row for other
 * reasons too.
 */
const OBJECTS = `
  WITH object (catalog, id, part, xmin, print) AS (
    SELECT 'pg_class'::regclass, oid, 0, xmin, ROW(relname, relnamespace, relowner, relpersistence, relreplident,
           relrowsecurity, relforcerowsecurity, reloptions)::text
    FROM pg_class WHERE relkind IN ('r', 'p', 'f', 'v', 'm', 'S', 'i', 'I') AND relnamespace <> 'pg_toast'::regnamespace
    UNION ALL SELECT 'pg_class'::regclass, attrelid, attnum::int, a.xmin,
           CASE WHEN attisdropped THEN '${DROPPED}' ELSE a.xmin::text END
    FROM pg_attribute AS a JOIN pg_class ON pg_class.oid = attrelid WHERE attnum > 0 AND relkind IN ('r', 'p', 'f', 'c')
    UNION ALL SELECT 'pg_class'::regclass, adrelid, adnum::int, xmin, xmin::text FROM pg_attrdef
    UNION ALL SELECT 'pg_constraint'::regclass, oid, 0, xmin, xmin::text FROM pg_constraint WHERE conislocal
    UNION ALL SELECT 'pg_proc'::regclass, oid, 0, xmin, xmin::text FROM pg_proc
    UNION ALL SELECT 'pg_type'::regclass, oid, 0, xmin, xmin::text FROM pg_type WHERE typtype IN ('e', 'd', 'r')
    UNION ALL SELECT 'pg_type'::regclass, enumtypid, 0, xmin, xmin::text FROM pg_enum
    UNION ALL SELECT 'pg_rewrite'::regclass, oid, 0, xmin, xmin::text FROM pg_rewrite
    UNION ALL SELECT 'pg_trigger'::regclass, oid, 0, xmin, xmin::text FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'pg_policy'::regclass, oid, 0, xmin, xmin::text FROM pg_policy
    UNION ALL SELECT 'pg_namespace'::regclass, oid, 0, xmin, xmin::text FROM pg_namespace
  )`;

interface SeenObject {
  key: string;
  /** Null: PostgreSQL knows no name. */
  kind: string | null;
  identity: string | null;
  print: string;
}

const SHOWN = `
  concat_ws(' ', catalog::oid, id, part) AS key, min(named.type) AS kind, min(named.identity) AS identity,
  string_agg(print, ' ' ORDER BY print) AS print
  FROM object CROSS JOIN LATERAL pg_identify_object(catalog, id, part) AS named
  WHERE id >= 16384`;

/** Objects of `main` that are younger than the transaction `$1`. */
const YOUNGER = `${OBJECTS} SELECT ${SHOWN} AND age(object.xmin) < age($1::xid) GROUP BY 1 LIMIT 1000`;

const KEYS = `${OBJECTS}
  SELECT string_agg(DISTINCT concat_ws(' ', catalog::oid, id, part), ',') AS keys FROM object
  WHERE id >= 16384 AND part = 0`;

/**
 * Objects that have one of the keys `$1`, and those that `main` had too and whose key is not among `$2`. Of a column that was
 * dropped, the row stays.
 */
const THERE = `${OBJECTS}
  SELECT ${SHOWN} AND (concat_ws(' ', catalog::oid, id, part) = ANY ($1) OR part = 0 AND age(object.xmin) > age($3::xid)
    AND concat_ws(' ', catalog::oid, id, part) NOT IN (SELECT unnest($2::text[])))
  GROUP BY 1 LIMIT 2000`;

/**
 * @param login may connect to both databases
 * @returns null if nobody knows what `main` was like then: the branch is no clone of the database that `main` has now
 */
export async function changesOfMain(
  host: ProofHost,
  login: ComparisonLogin,
  main: string,
  branch: string,
): Promise<MainChange[] | null> {
  const cloned = await readCloned(host.postgres, branch, main);
  if (cloned === null) return null;
  const present = await readAsLogin(host, login, main, READ_WITHIN_MS, async (session) => ({
    younger: (await session.query<SeenObject>(YOUNGER, [cloned])).rows,
    keys: (await session.query<{ keys: string | null }>(KEYS)).rows[0]?.keys?.split(',') ?? [],
  }));
  const wanted = present.younger.map(({ key }) => key);
  const { rows } = await readAsLogin(host, login, branch, READ_WITHIN_MS, (session) =>
    session.query<SeenObject>(THERE, [wanted, present.keys, cloned]),
  );
  return differencesOf(present.younger, rows);
}

async function readCloned(db: Queryable, branch: string, main: string): Promise<string | null> {
  const { rows } = await db.query<{ xmin: string }>(CLONED, [branch, main]);
  return rows[0]?.xmin ?? null;
}

function differencesOf(younger: readonly SeenObject[], there: readonly SeenObject[]): MainChange[] {
  const before = new Map(there.map((object) => [object.key, object]));
  const now = new Set(younger.map(({ key }) => key));
  const found = younger.flatMap(({ key, kind, identity, print }): MainChange[] => {
    const known = before.get(key);
    if (print === DROPPED)
      return known?.kind && known.identity
        ? [{ kind: known.kind, identity: known.identity, change: 'dropped' }]
        : [];
    if (kind === null || identity === null) return [];
    if (!known) return [{ kind, identity, change: 'added' }];
    return known.print === print ? [] : [{ kind, identity, change: 'changed' }];
  });
  const dropped = there.flatMap(({ key, kind, identity }): MainChange[] =>
    now.has(key) || kind === null || identity === null ? [] : [{ kind, identity, change: 'dropped' }],
  );
  const whole = new Set(
    [...found, ...dropped].flatMap(({ identity, change }) => (change === 'changed' ? [] : [identity])),
  );
  return (
    [...found, ...dropped]
      // The parts of what is there, or gone, as a whole say nothing more.
      .filter(({ kind, identity }) => !whole.has(wholeOf(kind, identity)))
      .toSorted((one, other) => (one.identity < other.identity ? -1 : 1))
      .slice(0, REPORTED_MAX)
  );
}

/** The table of a column, a constraint, a trigger, a rule or a policy, both as PostgreSQL writes them; otherwise empty. */
const wholeOf = (kind: string, identity: string): string =>
  kind === 'table column'
    ? identity.replace(/\.(?:"(?:[^"]|"")+"|[^."]+)$/, '')
    : (/ on (.+)$/.exec(identity)?.[1] ?? '');
