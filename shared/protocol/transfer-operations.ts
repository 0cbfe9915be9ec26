import { z } from 'zod';
import { COPY_JOBS } from '../limits.ts';
import { Access, Verifier } from './access.ts';
import { FollowStatus } from './follow.ts';
import { Database, Id, operation } from './operation.ts';
import { BranchIdentity, BusyWait } from './operation-fields.ts';

/** Characters of the URL of a source, and of a name in a request. */
export const SOURCE_URL_MAX = 2048;
export const SOURCE_NAME_MAX = 200;
/** Tables that a request may name, and that a result lists. */
export const SOURCE_TABLES_MAX = 1000;

/** Names and addresses of another host. */
const ADDRESSES_MAX = 8;
/** Branches of a project. */
const FROZEN_MAX = 5000;

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
  'limit',
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

const SourceUrl = z.string().min(1).max(SOURCE_URL_MAX);

/** Where the changes of a source come from. */
const Follow = {
  /** Name of the slot, and of the publication that the copy makes: `followName` of the project. */
  slot: z.string().regex(/^[a-z0-9_]{1,48}$/),
  /** A publication that the owner of the source has made; null: the copy makes it. */
  publication: z.string().min(1).max(SOURCE_NAME_MAX).nullable(),
};

/** A position of the WAL, as PostgreSQL writes it. */
const Lsn = z.string().regex(/^[0-9A-F]{1,8}\/[0-9A-F]{1,8}$/);

/** A branch that follows a source. */
const FollowingBranch = { project_id: Id, branch_id: Id, database: Database };

/** Name of the slot and of the publication of a project at its source. */
export const followName = (projectId: string): string => `branchgate_${projectId.replaceAll('-', '')}`;

const AtSource = {
  /** The slot and the publication are gone at the source, or were never made. */
  dropped_at_source: z.boolean(),
  /** What is left there, and the statements that remove it; null: nothing. */
  message: z.string().nullable(),
};

/**
 * The source is another host of the same operator, whose login was made by `move.admit`: its address may be one that
 * no tenant may name, and it takes none of the tenant's places for following. Left out: it is a tenant's choice.
 */
const OfHost = { of_host: z.boolean().optional() };

const Tables = z.array(z.string().max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).nullable();

const Names = z.array(z.string().min(1).max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).optional();

/** What of a source is neither locked nor read, with all that depends on it. Left out: nothing. */
const LeftAlone = {
  /** Objects of other schemas are left alone. */
  schemas: Names,
  exclude_schemas: Names,
  /** As SQL names them, with their schema unless it is `public`. */
  exclude_tables: Names,
};

/** The fields of a request that say what is left alone, without those that are not given. */
export const leftAloneOf = ({
  schemas,
  exclude_schemas,
  exclude_tables,
}: { [K in keyof typeof LeftAlone]?: z.output<(typeof LeftAlone)[K]> }) => ({
  ...(schemas && { schemas }),
  ...(exclude_schemas && { exclude_schemas }),
  ...(exclude_tables && { exclude_tables }),
});

/** Operations about a PostgreSQL server elsewhere whose data a project takes over. */
export const TRANSFER_OPERATIONS = {
  'transfer.probe': operation({
    summary:
      'Check whether a database elsewhere can be followed or copied. Changes nothing there, and tries its schema in a database of its own',
    params: z.strictObject({
      project_id: Id,
      /** With the password. */
      source_url: SourceUrl,
      use: z.enum(SOURCE_USES),
      /** The branch that has to be empty; null: none. */
      into: z.strictObject({ branch_id: Id, database: Database }).nullable(),
      /** Tables as SQL names them; null: all. */
      tables: Tables,
      ...LeftAlone,
      /** An existing publication of the source; null: none yet. */
      publication: z.string().max(SOURCE_NAME_MAX).nullable(),
      /** What the storage quota of the project has left. */
      room_bytes: Bytes,
      ...OfHost,
    }),
    result: z.strictObject({
      /** Null if it could not be read. */
      source: ProbedSource.nullable(),
      findings: z.array(SourceFinding),
    }),
    deadline: 90_000,
    concurrent: true,
  }),
  'transfer.copy': operation({
    summary: 'Copy a database elsewhere, as of one snapshot, into a new database for a branch that is empty',
    params: z.strictObject({
      ...BranchIdentity,
      /** With the password. */
      source_url: SourceUrl,
      tables: Tables,
      ...LeftAlone,
      /** What the storage quota of the project has left. */
      room_bytes: Bytes,
      jobs: z.int().min(1).max(COPY_JOBS.max),
      busy_wait: BusyWait,
      /**
       * Makes a slot, and the publication unless one is named, and copies the rows of the slot's snapshot, so that
       * `follow.start` continues with the next change. A copy that fails or is cancelled drops both; one that was
       * killed leaves them to the next call, or to `follow.stop`. Null: only a copy.
       */
      follow: z.strictObject(Follow).nullable(),
      ...OfHost,
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
  'follow.start': operation({
    summary:
      'Make the branch that a copy was swapped into follow its source. Its clients can only read from then on',
    params: z.strictObject({
      ...FollowingBranch,
      source_url: SourceUrl,
      ...Follow,
      /** Those of the copy. */
      tables: Tables,
      ...OfHost,
    }),
    result: z.strictObject({}),
    deadline: 60_000,
  }),
  'follow.status': operation({
    summary: 'Report the lag of a branch, and why its replication is stopped',
    params: z.strictObject(FollowingBranch),
    result: FollowStatus,
    deadline: 20_000,
    concurrent: true,
  }),
  'follow.resume': operation({
    summary: 'Compare the schemas of a stopped branch and its source, apply additions, and follow again',
    params: z.strictObject({
      ...FollowingBranch,
      /** Apply every other change of the schema too: nobody else can change the branch while it follows. */
      apply_changes: z.boolean(),
    }),
    /** With a problem if replication is still stopped. */
    result: FollowStatus,
    deadline: 60_000,
  }),
  'follow.cutover': operation({
    summary:
      'Refuse writes at the source, wait for its last change, set the sequences, compare both sides, and stop following',
    params: z.strictObject({
      ...FollowingBranch,
      job_id: Id,
      /** The owner of the source has stopped everything that writes there. False: the host refuses writes there. */
      writes_refused: z.boolean(),
      /** The rows of both sides were compared before, by `move.compare`. Left out: they are compared now. */
      is_compared: z.boolean().optional(),
      /** The last change comes before this position, as `move.close` has said. Left out: the source is asked. */
      until_lsn: Lsn.optional(),
    }),
    result: z.strictObject({
      /** Null if the branch still follows, for the findings. A repeated call begins again. */
      cut_over: z
        .strictObject({
          tables: z.array(CopiedTable).max(SOURCE_TABLES_MAX),
          has_more: z.boolean(),
          /** Of all tables. */
          rows: Rows,
          sequences: z.int().nonnegative(),
          /** For how long writes were refused before the branch was open. */
          refused_ms: z.number().nonnegative(),
          ...AtSource,
        })
        .nullable(),
      findings: z.array(SourceFinding),
    }),
    deadline: 900_000,
  }),
  'follow.cancel_cutover': operation({
    summary: 'Call a cut-over off before its last step, and accept writes at the source again',
    params: z.strictObject({ ...FollowingBranch }),
    /** False if there is none, or if its last step has begun. */
    result: z.strictObject({ cancelled: z.boolean() }),
    deadline: 30_000,
  }),
  'follow.stop': operation({
    summary: 'Stop following, drop the slot and the publication at the source, and let clients write again',
    params: z.strictObject({
      ...FollowingBranch,
      /** For what a copy has left at the source when the branch does not follow yet; null: the host knows it. */
      source_url: SourceUrl.nullable(),
      ...Follow,
    }),
    result: z.strictObject(AtSource),
    deadline: 60_000,
  }),
  'move.admit': operation({
    summary:
      'Make the login with which another host reads the databases of a project that moves there, and set who it is',
    params: z.strictObject({
      job_id: Id,
      project_id: Id,
      /** Of `main`, where the login publishes. */
      database: Database,
      verifier: Verifier,
      /** Names or addresses from which the other host connects. This host resolves them. */
      from: z.array(z.hostname().max(253)).min(1).max(ADDRESSES_MAX),
      /** Seconds until the login is worthless, and is removed with what it has left. A repeated call extends it. */
      valid_seconds: z.int().min(1).max(86_400),
      /** Branches that can only be read until the release, next to those of earlier calls. */
      frozen: z.array(Id).max(FROZEN_MAX),
      /** `move.close` comes next: what it compares is compared before, while clients do not wait. */
      closes_next: z.boolean().optional(),
    }),
    result: z.strictObject({
      /** When the login was made. */
      admitted_at: z.string(),
      /** Whether this host can remove what the login leaves. False: its `pg_hba.conf` is of an earlier release. */
      can_remove: z.boolean(),
    }),
    deadline: 60_000,
  }),
  'move.close': operation({
    summary:
      'Close a project, end every session of it, and compare the branches that could only be read with what they were',
    params: z.strictObject({
      job_id: Id,
      project_id: Id,
      /** That closes it. Null: it is closed already. */
      access: Access.nullable(),
      /** The branches that were copied while they could only be read. */
      frozen: z.array(Id).max(FROZEN_MAX),
    }),
    result: z.strictObject({
      /** Null: the login was removed, so branches may have been written. */
      admitted_at: z.string().nullable(),
      /** Everything that was written comes before this position of the WAL. Null: the login was removed. */
      written_lsn: Lsn.nullable(),
      /** Those of them that have another content than when they became read-only, or of which that is not known. */
      changed: z.array(Id).max(FROZEN_MAX),
    }),
    deadline: 60_000,
  }),
  'move.release': operation({
    summary:
      'Remove that login with its sessions, slots and publications, and let clients write again. Fails until nothing is left',
    params: z.strictObject({ job_id: Id, project_id: Id }),
    /** False: it was not there. */
    result: z.strictObject({ released: z.boolean() }),
    deadline: 60_000,
  }),
  'move.compare': operation({
    summary: 'Compare the rows of a branch that follows with its source, of each table as of one commit',
    params: z.strictObject({ ...FollowingBranch, job_id: Id }),
    result: z.strictObject({
      /** Null for the findings. */
      compared: z.strictObject({ tables: z.int().nonnegative(), rows: Rows }).nullable(),
      findings: z.array(SourceFinding),
    }),
    deadline: 900_000,
  }),
} as const;

/** The login of the job of a move. */
export const moverLogin = (jobId: string): string => `mv_${jobId.replaceAll('-', '')}`;
