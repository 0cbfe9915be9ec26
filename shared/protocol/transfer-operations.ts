import { z } from 'zod';
import { Id, operation } from './operation.ts';

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
] as const;

/** Something about a source that prevents `main` from following it, or that limits what follows. */
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

/** Operations about a PostgreSQL server elsewhere whose data a project takes over. */
export const TRANSFER_OPERATIONS = {
  'transfer.probe': operation({
    summary: 'Check whether a database elsewhere can be followed. Reads its catalog and changes nothing',
    params: z.strictObject({
      project_id: Id,
      /** With the password. */
      source_url: z.string().min(1).max(SOURCE_URL_MAX),
      /** Tables as SQL names them; null: all. */
      tables: z.array(z.string().max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).nullable(),
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
} as const;
