import pg from 'pg';
import { AS_TEXT, type Session } from './connect.ts';

/** A column of a result, as PostgreSQL describes it before the rows. */
export type Field = Pick<pg.FieldDef, 'name' | 'dataTypeID' | 'dataTypeModifier'>;

interface Outcome {
  fields: Field[];
  /** Null for an empty statement. */
  command: string | null;
  rowCount: number | null;
}

/** Rows that are fetched together, if a statement may end before its last one. */
const FETCHED = 100;

interface Connection {
  /** Ends the statement: the server skips the rest of it, and sends `ReadyForQuery`. */
  sync: () => void;
}

/** What the driver calls, without types. */
interface Handlers {
  handlePortalSuspended: (connection: Connection) => void;
  handleError: (error: Error, connection: Connection) => void;
}

const DRIVER = pg.Query.prototype as unknown as Handlers;

/** A statement whose rows are not fetched any more once there are enough. Its transaction continues. */
class Fetching extends pg.Query<(string | null)[]> implements Handlers {
  hasEnough = false;

  /** After `FETCHED` rows. */
  handlePortalSuspended(connection: Connection): void {
    if (this.hasEnough) connection.sync();
    else DRIVER.handlePortalSuspended.call(this, connection);
  }

  /** The driver sends no `Sync` after an error while it fetches, and would wait for ever. */
  handleError(error: Error, connection: Connection): void {
    connection.sync();
    DRIVER.handleError.call(this, error, connection);
  }
}

/**
 * Runs one statement by PostgreSQL's extended protocol, which refuses a text with several. Rows are not
 * collected.
 * @param onRow gets the text of each value, and returns whether there is room for more; if it throws, that is
 *   the failure, and the statement continues
 * @param options.untilFull ends the statement early without room for more; it must only read
 * @throws the error of PostgreSQL
 */
export function runStatement(
  session: Session,
  text: string,
  values: (string | null)[],
  onRow: (row: (string | null)[], fields: Field[]) => boolean,
  { untilFull }: { untilFull: boolean },
): Promise<Outcome> {
  const rows = untilFull ? { rows: FETCHED } : {};
  const config = { text, values, rowMode: 'array', queryMode: 'extended', types: AS_TEXT, ...rows };
  return new Promise((resolve, reject) => {
    const query = untilFull
      ? new Fetching(config as never)
      : new pg.Query<(string | null)[]>(config as never);
    let seen = 0;
    query.on('row', (row, result) => {
      seen += 1;
      try {
        const hasRoom = onRow(row, (result as unknown as { fields: Field[] }).fields);
        if (!hasRoom && query instanceof Fetching) query.hasEnough = true;
      } catch (error) {
        reject(error);
      }
    });
    query.on('error', reject);
    // In parts, PostgreSQL counts the rows of the last part only, which is empty after a multiple of `FETCHED`.
    query.on('end', ({ fields, command, rowCount }) =>
      resolve({
        fields,
        command: command || null,
        rowCount: rowCount === null ? null : Math.max(rowCount, seen),
      }),
    );
    session.query(query);
  });
}
