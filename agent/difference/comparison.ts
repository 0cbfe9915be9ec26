import type { DifferenceMethod } from '../../shared/protocol/difference-operations.ts';
import type { Session } from '../postgres/connect.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { describeTable, fromTable, type TableDescription } from '../rows/describe-table.ts';
import { type Candidates, findCandidates } from './candidates.ts';
import { type Difference, differencesOf, type Matching, matchingOf, orderedRows } from './compare-rows.ts';
import { EndedByCloneError, isEndedByClone } from './ended-by-clone.ts';
import type { BlockRanges } from './extents.ts';
import { type ComparisonHost, inSnapshotOf, type Sides } from './sides.ts';
import {
  type Catalog,
  commonColumns,
  comparableByBlocks,
  type FoundTable,
  pairTables,
  readCatalog,
  type TablePair,
} from './tables.ts';

/**
 * A table was truncated or rewritten between the snapshot and its reading, so the snapshot does not apply to
 * it.
 */
class RewrittenError extends Error {}

const TRIES = 3;

/** A table that both sides have, or one of them, as it is read. */
export interface ComparedTable {
  descriptions: { before: TableDescription | null; after: TableDescription | null };
  matching: Matching;
  method: DifferenceMethod;
  differences: AsyncGenerator<Difference>;
}

/** Both databases, each in one snapshot. */
export class Comparison {
  readonly before: Session;
  readonly after: Session;
  readonly pairs: readonly TablePair[];
  readonly method: DifferenceMethod;
  readonly #blocks: Candidates['blocks'];
  readonly #sameLabels: boolean;

  constructor(
    sessions: { before: Session; after: Session },
    catalogs: { before: Catalog; after: Catalog },
    pairs: readonly TablePair[],
    candidates: Candidates,
  ) {
    this.before = sessions.before;
    this.after = sessions.after;
    this.pairs = pairs;
    this.method = candidates.method;
    this.#blocks = candidates.blocks;
    this.#sameLabels = catalogs.before.labels === catalogs.after.labels;
  }

  /** The blocks of a table in which rows can differ; null: all. */
  blocksOf({ before, after }: TablePair): BlockRanges | null {
    if (!before || !after || !this.#blocks) return null;
    if (!comparableByBlocks(before, after, this.#sameLabels)) return null;
    return this.#blocks.get(after.relfilenode) ?? null;
  }

  /** @param key the key after which it begins. @param onRows called with the number of rows that were read */
  async open(
    pair: TablePair,
    key: readonly string[] | null = null,
    onRows: (rows: number) => void = () => {},
  ): Promise<ComparedTable> {
    const blocks = this.blocksOf(pair);
    await this.#lock(pair);
    const describe = (session: Session, table: FoundTable | null) =>
      table && describeTable(session, { schema: table.schema, table: table.name });
    const [before, after] = await Promise.all([
      describe(this.before, pair.before),
      describe(this.after, pair.after),
    ]);
    const found = pair.after ?? pair.before;
    const described = after ?? before;
    if (!found || !described) throw new HostError('TABLE_NOT_FOUND', 'there is no such table');
    const columns =
      pair.before && pair.after
        ? commonColumns(pair.before, pair.after)
        : found.columns.map(({ name }) => name);
    const matching = matchingOf(before ?? described, after ?? described, columns);
    const query = (session: Session, description: TableDescription | null) =>
      description && {
        session,
        ...orderedRows(description, nameOf(description, pair), matching, blocks, key),
      };
    const queries = { before: query(this.before, before), after: query(this.after, after) };
    return {
      descriptions: { before, after },
      matching,
      method: blocks ? this.method : 'full',
      differences: differencesOf(queries, (queries.after ?? queries.before)?.order ?? [], {
        onOpen: () => this.#requireUnchanged(pair),
        onRows,
      }),
    };
  }

  /** Counts the rows of a table that only one side has. */
  async count(pair: TablePair): Promise<number> {
    const session = pair.after ? this.after : this.before;
    await this.#lock(pair);
    const { rows } = await session.query<{ rows: string }>(
      `SELECT pg_catalog.count(*) AS rows FROM ${nameOf({ kind: 'r' }, pair)}`,
    );
    await this.#requireUnchanged(pair);
    return Number(rows[0]?.rows);
  }

  /**
   * Locks both sides before a statement reads them. Names mean what the catalog says now, not in the
   * snapshot: a tenant can put a view with functions in the place of the table. LOCK runs no code, and what
   * it locked keeps its name.
   * @throws RewrittenError
   */
  async #lock(pair: TablePair): Promise<void> {
    const lock = (session: Session, table: FoundTable | null) =>
      table && session.query(`LOCK TABLE ${nameOf({ kind: 'r' }, pair)} IN ACCESS SHARE MODE`);
    await Promise.all([lock(this.before, pair.before), lock(this.after, pair.after)]);
    await this.#requireUnchanged(pair);
  }

  /**
   * To be called while the transactions hold locks of the table, and again when a statement has found it by
   * its name: a schema can be renamed in spite of these locks.
   * @throws RewrittenError
   */
  async #requireUnchanged({ schema, name, before, after }: TablePair): Promise<void> {
    const check = async (session: Session, table: FoundTable | null) => {
      if (!table) return;
      const { rows } = await session.query<{ file: string | null; same: string | null }>(
        `SELECT pg_catalog.pg_relation_filenode($1::pg_catalog.oid)::pg_catalog.text AS file,
           (pg_catalog.to_regclass(pg_catalog.format('%I.%I', $2::pg_catalog.text, $3::pg_catalog.text))
              ::pg_catalog.oid)::pg_catalog.text AS same`,
        [table.oid, schema, name],
      );
      if (rows[0]?.file !== table.relfilenode || rows[0].same !== table.oid) throw new RewrittenError();
    };
    await Promise.all([check(this.before, before), check(this.after, after)]);
  }
}

const nameOf = ({ kind }: Pick<TableDescription, 'kind'>, { schema, name }: TablePair) =>
  fromTable({ kind } as TableDescription, { schema, table: name });

interface Options {
  /** Milliseconds for everything. */
  within: number;
  /** The first rows are wanted soon, rather than all rows. */
  firstRows?: boolean;
  /** Only these are used; for tests and measurements. */
  methods?: readonly DifferenceMethod[] | undefined;
  /** Ends it before. */
  signal?: AbortSignal | undefined;
}

/**
 * Runs `action` over both databases, each in one snapshot. Begins again if a table was rewritten meanwhile.
 * @param session of the platform, in the agent's own database
 * @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY
 */
export async function compare<T>(
  host: ComparisonHost,
  session: Session,
  sides: Sides,
  { within, methods, firstRows = false, signal }: Options,
  action: (comparison: Comparison) => Promise<T>,
): Promise<T> {
  const until = performance.now() + within;
  for (let tries = 1; ; tries += 1) {
    try {
      return await once(Math.max(1, until - performance.now()));
    } catch (error) {
      if (isEndedByClone(error)) throw new EndedByCloneError();
      if (!(error instanceof RewrittenError)) throw asHostError(error);
      if (tries === TRIES) throw new HostError('HOST_BUSY', 'tables were rewritten during the comparison');
    }
  }

  function once(left: number): Promise<T> {
    const options = { within: Math.round(left), firstRows, signal };
    return inSnapshotOf(host, sides.before, options, (before) =>
      inSnapshotOf(host, sides.after, options, async (after) => {
        const [old, fresh] = await Promise.all([readCatalog(before), readCatalog(after)]);
        const pairs = pairTables(old, fresh);
        const shared = pairs.flatMap((pair) =>
          pair.before && pair.before.relfilenode === pair.after?.relfilenode ? [pair.before.relfilenode] : [],
        );
        const candidates = await findCandidates(host, session, sides, shared, left, methods);
        return action(new Comparison({ before, after }, { before: old, after: fresh }, pairs, candidates));
      }),
    );
  }
}

export const isRewritten = (error: unknown): boolean => error instanceof RewrittenError;
