import { z } from 'zod';
import { MANAGED_DATABASE } from '../branch/database-name.ts';

export const Id = z.uuid();
/** A database name of this service. Any other name is rejected before it reaches SQL or a rule file. */
export const Database = z.string().regex(MANAGED_DATABASE);

/** One operation of the link. */
export const operation = <P extends z.ZodType, R extends z.ZodType>(definition: {
  /** One line for the control tool's help and `docs/protocol.md`. */
  summary: string;
  params: P;
  result: R;
  /** Milliseconds that the edge waits for the reply; then the call fails with `HOST_TIMEOUT`. */
  deadline: number;
  /** Calls run concurrently: none joins an identical one, or waits for another about the same branch. */
  concurrent?: true;
  /** Calls of SQL over HTTP are counted apart, so that they leave all others to the platform. */
  lane?: 'sql';
}) => definition;
