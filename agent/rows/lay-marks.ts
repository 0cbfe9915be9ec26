import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../host.ts';
import { inBranch } from './branch-session.ts';
import { describeTable } from './describe-table.ts';
import { MARKS_PER_TABLE, stepFor } from './page-marks.ts';
import { isSeekable, type OrderedTable, orderedTable, seek } from './seek.ts';

/** A smaller table is walked in less time than a login takes. */
const ROWS_LEAST = 50_000;
const WALK_WITHIN_MS = 1_000;
/** A walk ends sooner, unless a clone keeps it from logging in. */
const WAIT_MS = 2_000;
const LOOK_EVERY_MS = 5;

interface Place {
  branch_id: string;
  database: string;
  schema: string;
  table: string;
}

const isWorthWalking = (table: OrderedTable) =>
  table.description.is_plain && table.description.likely_rows >= ROWS_LEAST && isSeekable(table);

/**
 * Walks a large table's key in the background and leaves marks all the way, for whoever reads deep in it next. What
 * is not done within a second is left undone.
 * @param known the table as its reader found it
 */
export function layMarks(host: Host, place: Place, known: OrderedTable): void {
  const { marks, walks } = host.rows;
  if (!isWorthWalking(known) || marks.isClaimed(known.name, known.description.state)) return;
  walks.start(place.branch_id, known.name, (signal) =>
    inBranch(host, place, 'background', async (session) => {
      const deadline = performance.now() + WALK_WITHIN_MS;
      const isOver = () => signal.aborted || performance.now() > deadline;
      // Since its reader looked, the table may have become another one.
      const table = orderedTable(await describeTable(session, place), place);
      if (!table || !isWorthWalking(table)) return;
      const { state, likely_rows } = table.description;
      marks.claim(table.name, state);
      await seek(marks, session, table, stepFor(likely_rows) * MARKS_PER_TABLE, isOver);
    }),
  );
}

/** Resolves once no walk is under way that would soon leave a mark near `offset`. */
export async function marksNear(
  { rows: { marks, walks } }: Host,
  { branch_id }: Place,
  { name, description }: OrderedTable,
  offset: number,
): Promise<void> {
  const { state, likely_rows } = description;
  const isNear = () => offset - (marks.before(name, state, offset)?.offset ?? 0) < stepFor(likely_rows);
  const deadline = performance.now() + WAIT_MS;
  while (walks.isWalking(branch_id, name) && !isNear() && performance.now() < deadline) {
    await sleep(LOOK_EVERY_MS);
  }
}
