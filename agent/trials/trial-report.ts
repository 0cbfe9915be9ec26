import type { RowDifference, SchemaDifference } from '../../shared/protocol/difference-operations.ts';
import type { Rehearsal, RehearsalReport } from '../../shared/protocol/rehearsal-operations.ts';
import type { TrialReport } from '../../shared/protocol/trial-operations.ts';
import { EQUAL, fitting } from '../difference/schema/compare-schemas.ts';
import type { LockSummary } from '../rehearsal/lock-record.ts';
import { tableReports } from '../rehearsal/report.ts';
import type { WatchedTables } from '../rehearsal/watched-tables.ts';

/** Bytes of JSON that each part of a report has. The sum is within 512 KiB, with the rest of it. */
export const ROOM = {
  results: 144 * 1024,
  rows: 96 * 1024,
  not_compared: 16 * 1024,
  tables: 48 * 1024,
  dangers: 16 * 1024,
  changes: 64 * 1024,
  statements: 64 * 1024,
  not_modelled: 16 * 1024,
};

/** Characters of PostgreSQL's message, which a tenant's code can choose. */
export const MESSAGE_MAX = 4_000;

export const NOTHING_CHANGED: Pick<TrialReport, 'rows' | 'schema'> = {
  rows: { tables: [], has_more: false, compared: 0, not_compared: [] },
  schema: EQUAL,
};

/** What is known of the copy before and after the statements. */
export interface Tried {
  limits: Rehearsal['limits'];
  before: WatchedTables;
  after: WatchedTables;
  locks: LockSummary;
  rows: RowDifference | null;
}

type Danger = RehearsalReport['dangers'][number];

/** Tables that were locked, rewritten or dropped, and what is dangerous about it, as in a rehearsal. */
export function triedTables({ limits, before, after, locks, rows }: Tried) {
  const report = tableReports({ limits, before, after, locks });
  const tables = report.tables
    .filter((table) => table.locks.length > 0 || table.rewritten || table.dropped)
    .map(({ rows_before: _, rows_after: __, ...table }) => table);
  const dangers = [...report.dangers, ...lostRows(before, rows)];
  return { tables, dangers, unwatched_tables: report.unwatched_tables };
}

/** Rows of a partition that move to another one are none that are lost, so a partitioned table counts as a whole. */
function lostRows({ tables }: WatchedTables, rows: RowDifference | null): Danger[] {
  const byOid = new Map(tables.map((table) => [table.oid, table]));
  const byName = new Map(tables.map((table) => [JSON.stringify([table.schema, table.name]), table]));
  const lost = new Map<string, Danger & { count: number }>();
  for (const { schema, name, deleted, inserted } of rows?.tables ?? []) {
    const table = byName.get(JSON.stringify([schema, name]));
    const root = (table && byOid.get(table.root)) ?? { schema, name };
    const key = JSON.stringify([root.schema, root.name]);
    const known = lost.get(key)?.count ?? 0;
    lost.set(key, {
      kind: 'rows_lost',
      schema: root.schema,
      name: root.name,
      count: known + deleted - inserted,
    });
  }
  return [...lost.values()].filter(({ count }) => count > 0).map(({ count: _, ...danger }) => danger);
}

/** Cuts each list to its room, and says so. A plan of statements that is too long is left out as a whole. */
export function fittedReport(report: TrialReport): TrialReport {
  let isCut = report.results.some(({ has_more }) => has_more);
  const cut: Cut = (list, room) => {
    const some = fitting(list, room);
    isCut ||= some.length < list.length;
    return some;
  };
  const rows = report.rows && fittedRows(report.rows, cut);
  const schema = report.schema && fittedSchema(report.schema, cut);
  const tables = cut(report.tables, ROOM.tables);
  const dangers = cut(report.dangers, ROOM.dangers);
  return {
    ...report,
    rows,
    schema,
    tables,
    dangers,
    has_more: isCut || rows?.has_more === true,
  };
}

type Cut = <T>(list: readonly T[], room: number) => T[];

function fittedRows(rows: RowDifference, cut: Cut): RowDifference {
  const tables = cut(rows.tables, ROOM.rows);
  const not_compared = cut(rows.not_compared, ROOM.not_compared);
  const isCut = tables.length < rows.tables.length || not_compared.length < rows.not_compared.length;
  return { ...rows, tables, not_compared, has_more: rows.has_more || isCut };
}

function fittedSchema(schema: SchemaDifference, cut: Cut): SchemaDifference {
  const statements = cut(schema.statements, ROOM.statements);
  return {
    ...schema,
    changes: cut(schema.changes, ROOM.changes),
    statements: statements.length < schema.statements.length ? [] : statements,
    not_modelled: cut(schema.not_modelled, ROOM.not_modelled),
  };
}
