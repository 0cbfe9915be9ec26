import { z } from 'zod';
import { COPY_JOBS } from '../limits.ts';
import { Database, Id, operation } from './operation.ts';
import { BranchIdentity, BusyWait } from './operation-fields.ts';

/** Characters of the URL of a source, and of a name in a request. */
export const SOURCE_URL_MAX = 2048;
export const SOURCE_NAME_MAX = 200;
/** Tables that a request may name, and that a result lists. */
export const SOURCE_TABLES_MAX = 1000;

/** What a finding is about. */
const SOURCE_PROBLEMS = [
  'url',
  'address',
  'connection',
  'tls',
  'login',
  'version',
  'standby',
  'wal_level',
  'replication_slots',
  'wal_senders',
  'wal_keep_size',
  'rights',
  'encoding',
  'extension',
  'large_objects',
  'size',
  'tables',
  'publication',
  'no_key',
  'not_followed',
  'not_empty',
  'schema',
  'rows',
] as const;

/** Something about a source that prevents its use, or that limits what follows or is copied. */
export const SourceFinding = z.strictObject({
  problem: z.enum(SOURCE_PROBLEMS),
  /** An `error` prevents it; a `warning` does not. */
  severity: z.enum(['error', 'warning']),
  /** The field of the request that it belongs to. */
  path: z.string(),
  message: z.string(),
  /** The table, extension or sequence, as SQL names it. */
  object: z.string().nullable(),
  /** A statement that mends it at the source. */
  statement: z.string().nullable(),
});
export type SourceFinding = z.output<typeof SourceFinding>;

const Bytes = z.int().nonnegative();

export const SourceTable = z.strictObject({
  schema: z.string(),
  table: z.string(),
  /** As PostgreSQL estimates them at the source. */
  rows: z.int().nonnegative(),
  /** With its indexes. */
  bytes: Bytes,
  /** The changes that follow: all, only new rows, or none. */
  follows: z.enum(['all', 'inserts', 'nothing']),
});
export type SourceTable = z.output<typeof SourceTable>;

export const ProbedSource = z.strictObject({
  host: z.string(),
  port: z.int(),
  database: z.string(),
  /** Of PostgreSQL. */
  version: z.string(),
  /**
   * How the source has proved that it is the named one: its certificate is of an authority that the host
   * knows, or it knows the password and has bound that proof to the TLS connection (RFC 5929).
   */
  tls: z.enum(['certificate', 'channel_binding']),
  tables: z.array(SourceTable).max(SOURCE_TABLES_MAX),
  /** There are more tables than are listed. */
  has_more: z.boolean(),
  /** Of all tables. */
  total_bytes: Bytes,
  /** Of all that the server may have. */
  free_slots: z.int(),
  /** WAL that a slot keeps at most while its reader is away; null: without a bound. */
  wal_keep_bytes: Bytes.nullable(),
});
export type ProbedSource = z.output<typeof ProbedSource>;

/** What a source is examined for. */
const SOURCE_USES = ['follow', 'import'] as const;

const Rows = z.int().nonnegative();

/** A table whose rows were copied. */
const CopiedTable = z.strictObject({
  schema: z.string(),
  table: z.string(),
  rows: Rows,
  /** Rows whose values were compared with the source's; all rows were counted. */
  compared: Rows,
});

const Tables = z.array(z.string().max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).nullable();

/** Operations about a PostgreSQL server elsewhere whose data a project takes over. */
export const TRANSFER_OPERATIONS = {
  'transfer.probe': operation({
    summary:
      'Check whether a database elsewhere can be followed or copied. Reads its catalog and changes nothing',
    params: z.strictObject({
      project_id: Id,
      /** With the password. */
      source_url: z.string().min(1).max(SOURCE_URL_MAX),
      use: z.enum(SOURCE_USES),
      /** The branch that has to be empty; null: none. */
      into: z.strictObject({ branch_id: Id, database: Database }).nullable(),
      /** Tables as SQL names them; null: all. */
      tables: Tables,
      /** An existing publication of the source; null: none yet. */
      publication: z.string().max(SOURCE_NAME_MAX).nullable(),
      /** What the storage quota of the project has left. */
      room_bytes: Bytes,
    }),
    result: z.strictObject({
      /** Null if it could not be read. */
      source: ProbedSource.nullable(),
      findings: z.array(SourceFinding),
    }),
    deadline: 40_000,
    concurrent: true,
  }),
  'transfer.copy': operation({
    summary: 'Copy a database elsewhere, as of one snapshot, into a new database for a branch that is empty',
    params: z.strictObject({
      ...BranchIdentity,
      /** With the password. */
      source_url: z.string().min(1).max(SOURCE_URL_MAX),
      tables: Tables,
      /** What the storage quota of the project has left. */
      room_bytes: Bytes,
      jobs: z.int().min(1).max(COPY_JOBS.max),
      busy_wait: BusyWait,
    }),
    result: z.strictObject({
      /** Null if it cannot be copied, for the findings that are errors. */
      copied: z
        .strictObject({
          tables: z.array(CopiedTable).max(SOURCE_TABLES_MAX),
          has_more: z.boolean(),
          /** Of all tables. */
          rows: Rows,
          size_bytes: Bytes,
        })
        .nullable(),
      findings: z.array(SourceFinding),
    }),
    deadline: 900_000,
  }),
  'transfer.cancel': operation({
    summary: 'Stop the copy of a job, if one is under way',
    params: z.strictObject({ job_id: Id, project_id: Id }),
    result: z.strictObject({ stopped: z.boolean() }),
    deadline: 15_000,
  }),
} as const;
