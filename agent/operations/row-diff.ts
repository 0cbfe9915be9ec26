import { type MethodResult, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { changedRows } from '../difference/changed-rows.ts';
import { compare } from '../difference/comparison.ts';
import { withSides } from '../difference/open-sides.ts';
import type { Host } from '../host.ts';

/** Time for the locks, and for the end of the comparison. */
const OTHERWISE_MS = 20_000;
const WITHIN_MS = OPERATIONS['row.diff'].deadline - OTHERWISE_MS;

/**
 * A page of the rows of one table that differ.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, STATEMENT_REFUSED, TIME_LIMIT_REACHED, PROJECT_BUSY, HOST_BUSY
 */
export const diffRows = (host: Host, params: Params<'row.diff'>): Promise<MethodResult<'row.diff'>> =>
  withSides(host, params, WITHIN_MS, (sides, session, { left }) =>
    compare(host, session, sides, { within: left(), firstRows: true }, (comparison) =>
      changedRows(comparison, params),
    ),
  );
