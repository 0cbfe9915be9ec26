import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';
import type { SavedRows } from './after-save.ts';
import type { Place } from './row-source.ts';
import type { Row, Staged, StagedRow } from './staged.ts';

/** Changes that the API makes in one transaction. */
const TOGETHER = 50;

interface Conflict {
  /** Index of the change in the request. */
  change: number;
  row: Row | null;
}

/** What the row must still have: the columns that change, or all that were read of a row to delete. */
const expectedOf = ({ original, values, isDeleted }: StagedRow): Row =>
  Object.fromEntries(Object.entries(original).filter(([name]) => isDeleted || Object.hasOwn(values, name)));

function changeOf(row: StagedRow, place: Place, primaryKey: readonly string[]) {
  const { schema, table } = place;
  if (row.id === null) return { action: 'insert' as const, schema, table, values: row.values };
  const key = { schema, table, primary_key: [...primaryKey], id: row.id.map(String) };
  const expected = expectedOf(row);
  return row.isDeleted
    ? { action: 'delete' as const, ...key, expected }
    : { action: 'update' as const, ...key, values: row.values, expected };
}

/**
 * Saves staged changes, up to 50 rows in one transaction.
 * @param onSaved called after each transaction with its rows as they are now. A later failure then does not repeat
 *   them
 * @returns the rows as somebody else changed them in the meantime, by the keys of the changes that conflict; null for a
 *   deleted one
 */
export async function saveStaged(
  place: Place,
  primaryKey: readonly string[],
  staged: Staged,
  onSaved: (rows: SavedRows) => void,
): Promise<ReadonlyMap<string, Row | null>> {
  const { path } = inBranch(place.projectId, place.branch);
  const entries = Object.entries(staged);
  for (let first = 0; first < entries.length; first += TOGETHER) {
    const part = entries.slice(first, first + TOGETHER);
    const changes = part.map(([, row]) => changeOf(row, place, primaryKey));
    try {
      const saved = await dataOf(
        api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/row-changes', {
          params: { path },
          body: { changes },
        }),
      );
      onSaved(
        new Map(
          saved.changes.flatMap((change, index) => {
            const entry = part[index];
            return entry ? [[entry[0], change] as const] : [];
          }),
        ),
      );
    } catch (error) {
      if (!(error instanceof ResponseError) || error.code !== 'CHANGES_CONFLICT') throw error;
      const conflicts = (error.fields.conflicts ?? []) as Conflict[];
      return new Map(
        conflicts.flatMap(({ change, row }) => {
          const entry = part[change];
          return entry ? [[entry[0], row] as const] : [];
        }),
      );
    }
  }
  return new Map();
}
