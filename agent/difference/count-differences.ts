import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type {
  NotCompared,
  RowDifference,
  TableDifference,
} from '../../shared/protocol/difference-operations.ts';
import { LOCK_NOT_AVAILABLE, sqlState } from '../postgres/postgres-failure.ts';
import { type Comparison, isRewritten } from './comparison.ts';
import type { ComparisonProgress } from './comparison-progress.ts';
import type { TablePair } from './tables.ts';

type Reason = Pick<NotCompared, 'reason' | 'detail'>;

/** Errors that are about the whole comparison. */
const FINAL = new Set(['57014', '25P03', '25P04', '57P01']);

const DETAIL_MAX = 200;

/** Bytes of JSON for each of the two lists; the schema needs the rest of the message. */
const LIST_BYTES_MAX = BOUNDS.messageBytes / 4;

/** Counts the rows that differ, table by table. A table that cannot be read does not stop the others. */
export async function countDifferences(
  comparison: Comparison,
  progress?: ComparisonProgress,
): Promise<RowDifference> {
  const tables: TableDifference[] = [];
  const notCompared: RowDifference['not_compared'] = [];
  await onBoth(comparison, 'SAVEPOINT before_table');
  for (const pair of comparison.pairs) {
    const { schema, name } = pair;
    progress?.begin(pair);
    const reason = reasonAgainst(pair);
    const found = reason ?? (await countInSavepoint(comparison, pair, progress));
    if ('reason' in found) notCompared.push({ schema, name, ...found });
    else if (found.inserted + found.updated + found.deleted > 0) tables.push(found);
  }
  const fitting = fittingOf(tables);
  const others = fittingOf(notCompared);
  return {
    tables: fitting,
    has_more: fitting.length < tables.length || others.length < notCompared.length,
    compared: comparison.pairs.length - notCompared.length,
    not_compared: others,
  };
}

function reasonAgainst({ before, after }: TablePair): Reason | null {
  const sides = [before, after].filter((side) => side !== null);
  if (sides.some(({ readable }) => !readable)) return { reason: 'not_readable' };
  return sides.some(({ row_security }) => row_security) ? { reason: 'row_security' } : null;
}

async function countInSavepoint(
  comparison: Comparison,
  pair: TablePair,
  progress?: ComparisonProgress,
): Promise<TableDifference | Reason> {
  if (comparison.blocksOf(pair)?.length === 0)
    return { ...NOTHING, ...named(pair), method: comparison.method };
  // This releases the locks too, of which a session may not collect many.
  const rollBack = () => onBoth(comparison, 'ROLLBACK TO SAVEPOINT before_table');
  try {
    const counted = await countOf(comparison, pair, progress);
    await rollBack();
    return counted;
  } catch (error) {
    const state = sqlState(error);
    if (isRewritten(error) || !(error instanceof Error) || !isOfTable(error, state)) throw error;
    await rollBack();
    if (state === LOCK_NOT_AVAILABLE) return { reason: 'locked' };
    return { reason: 'refused', detail: error.message.slice(0, DETAIL_MAX) };
  }
}

const onBoth = ({ before, after }: Comparison, sql: string) =>
  Promise.all([before.query(sql), after.query(sql)]);

/** PostgreSQL has refused a statement, or rows were not as they are expected. */
const isOfTable = (error: Error, state: string | undefined) =>
  'severity' in error
    ? error.severity === 'ERROR' && !FINAL.has(state ?? '')
    : error instanceof TypeError || error instanceof SyntaxError || error instanceof RangeError;

const NOTHING = { inserted: 0, updated: 0, deleted: 0 };
const named = ({ schema, name }: TablePair) => ({ schema, name });

async function countOf(
  comparison: Comparison,
  pair: TablePair,
  progress?: ComparisonProgress,
): Promise<TableDifference> {
  const counts = { ...NOTHING };
  if (!pair.before || !pair.after) {
    counts[pair.after ? 'inserted' : 'deleted'] = await comparison.count(pair);
    return { ...named(pair), ...counts, method: 'full' };
  }
  const { differences, method } = await comparison.open(pair, null, (rows) => progress?.fetched(rows));
  for await (const { before, after } of differences)
    counts[before ? (after ? 'updated' : 'deleted') : 'inserted'] += 1;
  return { ...named(pair), ...counts, method };
}

function fittingOf<T>(list: readonly T[]): T[] {
  let left = LIST_BYTES_MAX;
  return list.filter((item) => {
    left -= Buffer.byteLength(JSON.stringify(item)) + 1;
    return left >= 0;
  });
}
