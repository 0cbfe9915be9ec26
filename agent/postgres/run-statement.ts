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

/**
 * Runs one statement by PostgreSQL's extended protocol, which refuses a text with several. Rows are not
 * collected.
 * @param onRow gets the text of each value; if it throws, that is the failure, and the statement continues
 * @throws the error of PostgreSQL
 */
export function runStatement(
  session: Session,
  text: string,
  values: (string | null)[],
  onRow: (row: (string | null)[], fields: Field[]) => void,
): Promise<Outcome> {
  const config = { text, values, rowMode: 'array', queryMode: 'extended', types: AS_TEXT };
  return new Promise((resolve, reject) => {
    const query = new pg.Query<(string | null)[]>(config as never);
    query.on('row', (row, result) => {
      try {
        onRow(row, (result as unknown as { fields: Field[] }).fields);
      } catch (error) {
        reject(error);
      }
    });
    query.on('error', reject);
    query.on('end', ({ fields, command, rowCount }) =>
      resolve({ fields, command: command || null, rowCount }),
    );
    session.query(query);
  });
}
