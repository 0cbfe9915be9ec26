import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { type CopiedTable, tableName } from './copy-rows.ts';
import { finding, short } from './source-address.ts';

/** The copy refuses something of the source, so that trying again is of no use. */
export class Refused extends Error {
  readonly finding: SourceFinding;

  constructor(refused: SourceFinding) {
    super(refused.message);
    this.finding = refused;
  }
}

/** SQLSTATE classes whose messages name objects: constraints, columns, functions. */
const OF_OBJECTS = /^(?:0A|2B|3D|3F|42)/;

/** Other messages can quote a value, and those who see the job may not see it. */
const withoutValue = (message: string, sqlstate: string) =>
  OF_OBJECTS.test(sqlstate) ? message : `SQLSTATE ${sqlstate}`;

/** @returns the error itself if this server is the reason */
export function refused(error: unknown, of: (reason: string) => SourceFinding): unknown {
  const sqlstate = sqlState(error);
  if (!(error instanceof Error) || sqlstate === undefined || !/^[0-9A-Z]{5}$/.test(sqlstate)) return error;
  return asHostError(error) instanceof HostError
    ? error
    : new Refused(of(withoutValue(error.message, sqlstate)));
}

export const refusedRows = (table: CopiedTable, error: unknown): unknown =>
  refused(error, (reason) =>
    finding('rows', `PostgreSQL refuses the rows of ${short(tableName(table))} here: ${reason}.`, {
      object: short(tableName(table)),
    }),
  );
