import { z } from 'zod';
import { BRANCH_ROLES } from '../branch/login.ts';
import { isPlainAddress } from '../cidr.ts';
import { QUERY_PARAMETERS_MAX, SQL_BATCH_MAX } from '../limits.ts';
import { Database, Id, operation } from './operation.ts';
import { Password } from './operation-fields.ts';
import { Scalar } from './tables.ts';

export const ISOLATION_LEVELS = [
  'READ UNCOMMITTED',
  'READ COMMITTED',
  'REPEATABLE READ',
  'SERIALIZABLE',
] as const;

const Bytes = z.int().nonnegative();

/** The operations of SQL over HTTP: statements of a client as a login of the branch, through the pooler. */
export const SQL_OPERATIONS = {
  'sql.run': operation({
    summary: 'Run statements of a client of SQL over HTTP, and keep the rest of a long reply',
    params: z.strictObject({
      project_id: Id,
      branch_id: Id,
      database: Database,
      role: z.enum(BRANCH_ROLES),
      /** Revision of the access by which the gateway has admitted the client. */
      revision: z.int().nonnegative(),
      /** Of the client. */
      address: z.string().refine(isPlainAddress),
      /** Null: the statements run as the query login, and are undone. */
      password: Password.nullable(),
      application_name: z.string().max(64),
      statements: z
        .array(
          z.strictObject({
            text: z.string(),
            params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX),
          }),
        )
        .max(SQL_BATCH_MAX),
      /** Null: one statement, without a transaction around it. */
      transaction: z
        .strictObject({
          isolation: z.enum(ISOLATION_LEVELS).nullable(),
          read_only: z.boolean(),
          deferrable: z.boolean(),
        })
        .nullable(),
      /** Cells as PostgreSQL's text, and rows as arrays. */
      raw_text: z.boolean(),
      row_arrays: z.boolean(),
    }),
    result: z.strictObject({
      /** `outdated`: the host has newer access than the gateway had read. Nothing has run. */
      outcome: z.enum(['done', 'refused', 'outdated']),
      /** JSON for the client: the results or the error. The beginning of it, if there is a `reply_id`. */
      text: z.string(),
      /** UTF-8 bytes of the whole reply. */
      bytes: Bytes,
      reply_id: Id.nullable(),
    }),
    deadline: 45_000,
    concurrent: true,
    lane: 'sql',
  }),

  'sql.read': operation({
    summary: 'Read the next part of a reply of SQL over HTTP',
    params: z.strictObject({ reply_id: Id, offset: Bytes }),
    /** `bytes` of the part. The reply is dropped with its last part, and 30 s after the last call for a part. */
    result: z.strictObject({ text: z.string(), bytes: z.int().positive() }),
    deadline: 15_000,
    concurrent: true,
    lane: 'sql',
  }),
} as const;
