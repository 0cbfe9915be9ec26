import type { MaskingRule } from '../../shared/masking.ts';
import { identifier, inTransaction, literal, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import {
  type FunctionSchema,
  keyBlocks,
  maskedValue,
  maskingFunctions,
  previewKey,
  survives,
  usesKey,
} from './functions.ts';
import { type Affected, COMMENT_OF, type Detour, keys, oidsOf } from './keys.ts';
import {
  type EmptyingPlan,
  type MaskedTable,
  type MaskingPlan,
  type MaskingProblem,
  nameOf,
  shownName,
} from './plan.ts';

/** The tables with rules, and all that inherit from them: a change of a table changes their rows. */
function affectedOf({ tables }: Pick<MaskingPlan, 'tables'>): MaskedTable[] {
  const affected = new Set(tables.filter(({ rules }) => rules.size > 0).map(({ oid }) => oid));
  for (let size = -1; size !== affected.size; ) {
    size = affected.size;
    for (const { oid, parents } of tables)
      if (parents.some((parent) => affected.has(parent))) affected.add(oid);
  }
  return tables.filter(({ oid }) => affected.has(oid));
}

/** Triggers would see the values and keep them, for instance in a table of the history of changes. */
async function triggers(session: Session, affected: Affected): Promise<Detour> {
  const { rows } = await session.query<{ relation: string; name: string; enabled: 'O' | 'R' | 'A' }>(
    `SELECT tgrelid::regclass::text AS relation, tgname::text AS name, tgenabled AS enabled FROM pg_trigger
     WHERE tgrelid = ANY ($1::oid[]) AND NOT tgisinternal AND tgenabled <> 'D' ORDER BY tgparentid, pg_trigger.oid`,
    [oidsOf(affected)],
  );
  const how = { O: 'ENABLE', R: 'ENABLE REPLICA', A: 'ENABLE ALWAYS' };
  return {
    // A partition can have another setting than the table that it is a part of, and is listed itself.
    before: rows.map(
      ({ relation, name }) => `ALTER TABLE ONLY ${relation} DISABLE TRIGGER ${identifier(name)}`,
    ),
    after: rows.map(
      ({ relation, name, enabled }) =>
        `ALTER TABLE ONLY ${relation} ${how[enabled]} TRIGGER ${identifier(name)}`,
    ),
  };
}

/** A rule could replace the change, and a forced policy could hide rows from it. */
async function rulesAndPolicies(session: Session, affected: Affected): Promise<Detour> {
  const { rows } = await session.query<{ relation: string; name: string; enabled: 'O' | 'R' | 'A' }>(
    `SELECT ev_class::regclass::text AS relation, rulename::text AS name, ev_enabled AS enabled FROM pg_rewrite
     WHERE ev_class = ANY ($1::oid[]) AND ev_enabled <> 'D' ORDER BY oid`,
    [oidsOf(affected)],
  );
  const how = { O: 'ENABLE', R: 'ENABLE REPLICA', A: 'ENABLE ALWAYS' };
  const { rows: forced } = await session.query<{ relation: string }>(
    'SELECT oid::regclass::text AS relation FROM pg_class WHERE oid = ANY ($1::oid[]) AND relforcerowsecurity',
    [oidsOf(affected)],
  );
  return {
    before: [
      ...rows.map(({ relation, name }) => `ALTER TABLE ${relation} DISABLE RULE ${identifier(name)}`),
      ...forced.map(({ relation }) => `ALTER TABLE ${relation} NO FORCE ROW LEVEL SECURITY`),
    ],
    after: [
      ...rows.map(
        ({ relation, name, enabled }) => `ALTER TABLE ${relation} ${how[enabled]} RULE ${identifier(name)}`,
      ),
      ...forced.map(({ relation }) => `ALTER TABLE ${relation} FORCE ROW LEVEL SECURITY`),
    ],
  };
}

/** PostgreSQL refuses to set an identity that is generated always. */
function identities(tables: readonly MaskedTable[]): Detour {
  const columns = tables.flatMap((table) =>
    table.columns
      .filter(({ name, alwaysIdentity }) => alwaysIdentity && table.rules.has(name))
      .map(({ name }) => `ALTER TABLE ${nameOf(table)} ALTER COLUMN ${identifier(name)} SET GENERATED`),
  );
  return {
    before: columns.map((column) => `${column} BY DEFAULT`),
    after: columns.map((column) => `${column} ALWAYS`),
  };
}

/** Extended statistics hold values, and those of a table without rows would stay as they are. */
async function extendedStatistics(session: Session): Promise<Detour> {
  const { rows } = await session.query<{
    name: string;
    definition: string;
    target: number | null;
    comment: string | null;
    owner: string;
  }>(
    `SELECT format('%I.%I', nspname, stxname) AS name, stxowner::regrole::text AS owner, pg_get_statisticsobjdef(pg_statistic_ext.oid) AS definition,
       stxstattarget AS target, ${COMMENT_OF('pg_statistic_ext', 'pg_statistic_ext.oid')} AS comment
     FROM pg_statistic_ext JOIN pg_namespace ON pg_namespace.oid = stxnamespace`,
  );
  return {
    before: rows.map(({ name }) => `DROP STATISTICS ${name}`),
    after: rows.flatMap(({ name, definition, target, comment, owner }) => [
      definition,
      `ALTER STATISTICS ${name} OWNER TO ${owner}`,
      ...(target === null ? [] : [`ALTER STATISTICS ${name} SET STATISTICS ${target}`]),
      ...(comment === null ? [] : [`COMMENT ON STATISTICS ${name} IS ${literal(comment)}`]),
    ]),
  };
}

const SAFE_PATH = 'pg_catalog, pg_temp';
/** As the owner writes SQL. The key is in no statement that looks names up there. */
const OWNER_PATH = 'public, pg_catalog, pg_temp';

/** A session of the login that masks can neither replace functions in it, nor add some. */
const SCHEMA: FunctionSchema = 'branchgate_masking';

/**
 * Makes the functions of a masking.
 * @param session of a login that can become `owner` as long as no code of the tenant runs
 */
export const createFunctions = (session: Session, { owner, user }: { owner: string; user: string }) =>
  session.query(`SET ROLE ${identifier(owner)};
    CREATE SCHEMA ${SCHEMA};
    GRANT USAGE ON SCHEMA ${SCHEMA} TO ${identifier(user)};
    ${maskingFunctions(SCHEMA)}`);

/** Drops them, with what code of the tenant has made of them. */
export const dropFunctions = (session: Session, { owner }: { owner: string }) =>
  session.query(`SET ROLE ${identifier(owner)}; DROP SCHEMA ${SCHEMA} CASCADE`);

/** The policy does not fit the values of a table, which is known only once they are replaced. */
export class MisfitError extends Error {
  override readonly name = 'MisfitError';
  readonly problems: MaskingProblem[];

  constructor(problems: MaskingProblem[]) {
    super(problems.map(({ table, column, reason }) => `${table}.${column}: ${reason}`).join('; '));
    this.problems = problems;
  }
}

/** SQLSTATE classes of broken constraints, and of objects that others depend on. Their messages name these. */
const OF_OBJECTS = /^(?:23|2B)/;

/** Fields of an error of PostgreSQL. */
interface Failure {
  code?: string;
  where?: string;
  position?: string;
}

/**
 * Whether the message of an error quotes no value. A statement that a function has made of a value can quote it in
 * any message; PostgreSQL names the function in `where`. An error with a position was found in the text of the
 * statement itself, before it ran.
 */
const isWithoutValue = ({ code, where, position }: Failure) =>
  where === undefined && (OF_OBJECTS.test(code ?? '') || position !== undefined);

/** SQLSTATE classes of what is wrong with the server, not with a statement. 53400 is `temp_file_limit`. */
const OF_SERVER = /^(?:08|53(?!400)|57|58|XX)/;

/** An error that `RAISE` in PL/pgSQL has made, with a code and a message of the tenant's choice. */
const isRaised = (error: Error) => 'routine' in error && error.routine === 'exec_stmt_raise';

/** The session has no time limit, unless code of the tenant has set one. */
const isTimeLimit = ({ message }: Error) => message === 'canceling statement due to statement timeout';

/**
 * Why PostgreSQL has refused a statement, without a value: its message can quote one, which everybody could
 * read who may create a masked branch.
 * @param columns that the statement changes, if there are several
 * @returns null if the statement is not the reason
 */
export function refusalOf(
  error: unknown,
  columns: readonly string[] = [],
): { reason: string; sqlstate: string } | null {
  const failure = error as Failure;
  const { code: sqlstate } = failure;
  if (!(error instanceof Error) || error instanceof HostError || typeof sqlstate !== 'string') return null;
  if (
    !/^[0-9A-Z]{5}$/.test(sqlstate) ||
    (OF_SERVER.test(sqlstate) && !isRaised(error) && !isTimeLimit(error))
  )
    return null;
  const refused = `PostgreSQL refuses the new values${columns.length === 0 ? '' : ` of ${columns.join(', ')}`}`;
  const reason = isWithoutValue(failure)
    ? `${refused}: ${error.message}`
    : `${refused} (SQLSTATE ${sqlstate})`;
  return { reason, sqlstate };
}

/**
 * Replaces the values of one table. It compares each row with what it was, so a value that stayed, and a row
 * that was not reached, undo everything.
 * @throws MisfitError if a value stayed, or PostgreSQL refuses a new one
 * @throws HostError INTERNAL
 */
async function maskTable(
  session: Session,
  table: MaskedTable,
  rules: ReadonlyMap<string, MaskingRule>,
  blocks: [Buffer, Buffer],
): Promise<void> {
  const columns = table.columns.flatMap((column) => {
    const rule = rules.get(column.name);
    return rule ? [{ column, rule }] : [];
  });
  if (columns.length === 0) return;
  const values = columns.map(
    ({ column, rule }) => `${identifier(column.name)} = ${maskedValue(SCHEMA, rule, column)}`,
  );
  const compared = columns.flatMap(({ column, rule }) => {
    const kept = survives(rule, column);
    return kept === null ? [] : [{ name: column.name, kept }];
  });
  const counts = compared.map((_, n) => `count(*) FILTER (WHERE kept${n})`);
  const update = `WITH changed AS (
      UPDATE ${nameOf(table)} SET ${values.join(',\n')}
      RETURNING ${compared.length === 0 ? 'false' : compared.map(({ kept }, n) => `${kept} AS kept${n}`).join(', ')}
    ) SELECT ARRAY[${['count(*)', ...counts].join(', ')}]::text[] AS counts FROM changed`;
  const { rows: before } = await session.query<{ rows: string }>(
    `SELECT count(*) AS rows FROM ${nameOf(table)}`,
  );
  const { rows } = await session
    .query<{ counts: string[] }>(update, usesKey(update) ? blocks : [])
    .catch((error: unknown) => {
      const names = columns.map(({ column }) => column.name);
      const [only = null] = names.length === 1 ? names : [];
      const refusal = refusalOf(error, only === null ? names : []);
      if (!refusal) throw error;
      throw new MisfitError([{ table: shownName(table), column: only, reason: refusal.reason }]);
    });
  const [changed, ...kept] = rows[0]?.counts ?? [];
  const problems = compared.flatMap(({ name }, n) => {
    if (kept[n] === '0') return [];
    const reason = `${kept[n]} of its values stay as they are: ${rules.get(name)?.with} finds no other one for them, so use another function`;
    return [{ table: shownName(table), column: name, reason }];
  });
  if (problems.length > 0) throw new MisfitError(problems);
  if (changed !== before[0]?.rows)
    throw new HostError(
      'INTERNAL',
      `of ${before[0]?.rows} rows of ${nameOf(table)}, ${changed} were reached`,
    );
}

async function runAll(session: Session, statements: readonly string[]): Promise<void> {
  for (const statement of statements) await session.query(statement);
}

/** Materialized views, each after those that it reads. */
async function refreshViews(session: Session): Promise<void> {
  const { rows } = await session.query<{ name: string }>(
    `WITH RECURSIVE uses AS (
       SELECT DISTINCT ev_class AS relation, refobjid AS used FROM pg_rewrite
       JOIN pg_depend ON objid = pg_rewrite.oid AND classid = 'pg_rewrite'::regclass AND refclassid = 'pg_class'::regclass
       WHERE refobjid <> ev_class
     ), depths (relation, depth) AS (
       SELECT oid, 0 FROM pg_class WHERE relkind = 'm'
       UNION SELECT uses.relation, depth + 1 FROM uses JOIN depths ON used = depths.relation WHERE depth < 100
     )
     SELECT format('%I.%I', nspname, relname) AS name FROM depths
     JOIN pg_class ON pg_class.oid = relation JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE relkind = 'm' AND relispopulated GROUP BY pg_class.oid, nspname, relname ORDER BY max(depth), pg_class.oid`,
  );
  await runAll(
    session,
    rows.map(({ name }) => `REFRESH MATERIALIZED VIEW ${name}`),
  );
}

/**
 * Changes the rows of the tables in one transaction, without triggers, rules and keys, and removes what else
 * has values: large objects, materialized views and statistics.
 * @param session of a login with the rights of the owner, in a database that no client can reach
 * @param isChanged whether the keys over this column are taken off
 * @param how whether these are foreign keys only
 */
async function changeRows(
  session: Session,
  affected: Affected,
  isChanged: (oid: string, column: string) => boolean,
  how: { isForeignOnly: boolean },
  change: () => Promise<void>,
): Promise<void> {
  await session.query(`SET search_path = ${SAFE_PATH}`);
  await inTransaction(session, async () => {
    const detours = [
      await triggers(session, affected),
      await rulesAndPolicies(session, affected),
      identities(affected),
      await extendedStatistics(session),
      await keys(session, affected, isChanged, how),
    ];
    for (const { before } of detours) await runAll(session, before);
    await change();
    for (const { after } of detours.toReversed()) await runAll(session, after);
    await session.query('SELECT lo_unlink(oid) FROM pg_largeobject_metadata');
    await refreshViews(session);
    await session.query(
      `SELECT pg_clear_attribute_stats(schemaname::text, tablename::text, attname::text, inherited) FROM pg_stats
       WHERE schemaname <> 'pg_catalog' AND schemaname <> 'information_schema'`,
    );
  });
}

/** Characters of a value that a preview shows. */
const SHOWN_CHARACTERS = 200;

/** A column with its rule; null: it stays as it is. */
interface PreviewedColumn {
  column: MaskedTable['columns'][number];
  rule: MaskingRule | null;
}

/**
 * Rows of a table with values such as they would get: the functions of its policies, which run in the session, could
 * learn the key, so it is another one than that of the project.
 * @param session in a transaction that is undone, with one snapshot for all statements
 */
export async function previewRows(
  session: Session,
  table: MaskedTable,
  columns: readonly PreviewedColumn[],
  { key, limit }: { key: Uint8Array; limit: number },
): Promise<{ before: (string | null)[]; after: (string | null)[] }[]> {
  const blocks = keyBlocks(previewKey(key));
  await session.query(maskingFunctions('pg_temp'));
  // Otherwise a large table is read from wherever another session is in it.
  await session.query('SET LOCAL synchronize_seqscans = off');
  const read = async (shown: readonly PreviewedColumn[]) => {
    const values = shown.map(({ column, rule }) => {
      const value = rule ? maskedValue('pg_temp', rule, column) : identifier(column.name);
      return `pg_catalog.left((${value})::pg_catalog.text, ${SHOWN_CHARACTERS})`;
    });
    const text = `SELECT ${values.join(', ')} FROM ${nameOf(table)} LIMIT ${limit}`;
    const { rows } = await session.query<(string | null)[]>({
      text,
      rowMode: 'array',
      values: usesKey(text) ? blocks : [],
    });
    return rows;
  };
  const before = await read(columns.map(({ column }) => ({ column, rule: null })));
  const isExpression = ({ rule }: PreviewedColumn) => rule?.with === 'expression';
  const others = await read(columns.filter((shown) => !isExpression(shown)));
  await session.query(`SET LOCAL search_path = ${OWNER_PATH}`);
  const expressions = await read(columns.filter(isExpression));
  return before.map((row, n) => {
    const other = [...(others[n] ?? [])];
    const expression = [...(expressions[n] ?? [])];
    const after = columns.map((shown) => (isExpression(shown) ? expression : other).shift() ?? null);
    return { before: row, after };
  });
}

/**
 * Removes the rows of the tables, and restarts their identities.
 * @param session of a login with the rights of the owner, in a database that no client can reach
 * @throws HostError INTERNAL if a row stayed
 */
export async function emptyTables(session: Session, { emptied }: EmptyingPlan): Promise<void> {
  const oids = new Set(oidsOf(emptied));
  const withRows = emptied.filter(({ isPartitioned }) => !isPartitioned);
  await changeRows(
    session,
    emptied,
    (oid) => oids.has(oid),
    { isForeignOnly: true },
    async () => {
      if (withRows.length === 0) return;
      const names = withRows.map((table) => nameOf(table));
      await session.query(`TRUNCATE ONLY ${names.join(', ONLY ')} RESTART IDENTITY`);
      for (const name of names) {
        const { rows } = await session.query(`SELECT FROM ONLY ${name} LIMIT 1`);
        if (rows.length > 0) throw new HostError('INTERNAL', `${name} kept rows`);
      }
    },
  );
}

/**
 * Replaces the values of all tables with rules. Large objects go too: no rule can be about them.
 * @param session as for `emptyTables`, in a database with the functions of `createFunctions`
 * @throws MisfitError if the policy does not fit the values
 * @throws HostError INTERNAL if a row was not reached
 */
export async function maskValues(
  session: Session,
  plan: Pick<MaskingPlan, 'tables'>,
  key: Uint8Array,
  onProgress?: OnProgress,
): Promise<void> {
  const affected = affectedOf(plan);
  const byOid = new Map(plan.tables.map((table) => [table.oid, table]));
  const isMasked = (oid: string, column: string): boolean => {
    const table = byOid.get(oid);
    return (
      table !== undefined &&
      (table.rules.has(column) || table.parents.some((parent) => isMasked(parent, column)))
    );
  };
  const blocks = keyBlocks(key);
  await session.query(`SET search_path = ${SAFE_PATH}`);
  await changeRows(session, affected, isMasked, { isForeignOnly: false }, async () => {
    const masked = affected.filter(({ rules }) => rules.size > 0);
    for (const [n, table] of masked.entries()) {
      const rules = [...table.rules];
      // First, because it is over what the other columns of the row were.
      await session.query(`SET LOCAL search_path = ${OWNER_PATH}`);
      await maskTable(
        session,
        table,
        new Map(rules.filter(([, rule]) => rule.with === 'expression')),
        blocks,
      );
      await session.query(`SET LOCAL search_path = ${SAFE_PATH}`);
      await maskTable(
        session,
        table,
        new Map(rules.filter(([, rule]) => rule.with !== 'expression')),
        blocks,
      );
      onProgress?.((n + 1) / masked.length);
    }
  });
}

/**
 * Writes every table again, without dead rows and dropped columns, and its statistics. The tables are named:
 * of a whole database PostgreSQL would wait for catalogs that all databases share.
 */
export async function rewriteTables(session: Session, onProgress?: OnProgress): Promise<void> {
  await session.query(`SET search_path = ${SAFE_PATH}`);
  const { rows } = await session.query<{ name: string; kind: string }>(
    `SELECT format('%I.%I', nspname, relname) AS name, relkind AS kind
     FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE relkind IN ('r', 'm', 'p') AND nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY relkind = 'p', pg_class.oid`,
  );
  for (const [n, { name, kind }] of rows.entries()) {
    await session.query(kind === 'p' ? `ANALYZE ${name}` : `VACUUM (FULL, ANALYZE) ${name}`);
    partOf(onProgress, n / rows.length, (n + 1) / rows.length)?.(1);
  }
}

/** Catalogs that hold values, or held them. */
const VALUE_CATALOGS = [
  'pg_statistic',
  'pg_statistic_ext_data',
  'pg_largeobject',
  'pg_largeobject_metadata',
  'pg_attribute',
];

/**
 * Writes the catalogs with values again. PostgreSQL skips, with a warning, a catalog that the session may not
 * vacuum.
 * @param session of a login that is a member of `pg_maintain`
 * @throws HostError INTERNAL if one was skipped
 */
export async function rewriteCatalogs(session: Session): Promise<void> {
  const fileOf = async () => {
    const { rows } = await session.query<{ files: string }>(
      'SELECT string_agg(pg_relation_filenode(name::regclass)::text, $2) AS files FROM unnest($1::text[]) AS names (name)',
      [VALUE_CATALOGS.map((name) => `pg_catalog.${name}`), ' '],
    );
    return (rows[0]?.files ?? '').split(' ');
  };
  const before = await fileOf();
  for (const name of VALUE_CATALOGS) await session.query(`VACUUM (FULL) pg_catalog.${name}`);
  const after = await fileOf();
  const skipped = VALUE_CATALOGS.filter((_, n) => before[n] === after[n]);
  if (skipped.length > 0) throw new HostError('INTERNAL', `${skipped.join(', ')} could not be vacuumed`);
}
