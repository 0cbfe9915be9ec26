import { z } from 'zod';
import { MANAGED_DATABASE } from '../branch/database-name.ts';
import { BRANCH_ROLES } from '../branch/login.ts';
import { readCidr } from '../cidr.ts';
import { NETWORK_RULES_MAX, ROWS_MAX } from '../limits.ts';
import { Cell, Column, RowId, Scalar, Table } from './tables.ts';

/**
 * What the edge can ask of a database host: method → parameters, result, deadline.
 * Every changing operation is idempotent: asked again with the same ids it finishes or confirms what the
 * first call began. The control tool offers the same operations from a shell.
 */

const Id = z.uuid();
/** A database this service named; anything else is refused before it comes near SQL or a rules file. */
const Database = z.string().regex(MANAGED_DATABASE);
/** SCRAM-SHA-256 verifier in PostgreSQL's own form; the host never stores a password. */
const Verifier = z
  .string()
  .max(512)
  .regex(/^SCRAM-SHA-256\$\d{4,7}:[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$/);
/** A network exactly as `readCidr` writes it. */
const Cidr = z.string().refine((text) => {
  const reading = readCidr(text);
  return reading.ok && reading.cidr === text;
}, 'not a network in canonical form');

const NetworkRule = z.strictObject({
  /** Branch the rule is for; `null`: every branch of the project. */
  branch_id: Id.nullable(),
  cidr: Cidr,
});

/**
 * Who may come into the databases of one project, and what they may do there. It is always told whole, and an
 * older revision never overwrites a newer one.
 */
const Access = z.strictObject({
  revision: z.int().nonnegative(),
  rules: z.array(NetworkRule).max(NETWORK_RULES_MAX),
  /** The storage quota is used up: owners alone may write (spec 3.2). */
  write_blocked: z.boolean().default(false),
  /** Branches whose logins are closed: those that have expired. */
  closed: z.array(Id).max(100).default([]),
  /** Passwords that are newer than the revision applied last, by branch. A revision brings them once. */
  verifiers: z.record(Id, z.partialRecord(z.enum(BRANCH_ROLES), Verifier)).default({}),
});

const BranchIdentity = {
  job_id: Id,
  project_id: Id,
  branch_id: Id,
  database: Database,
};

const Milliseconds = z.number().nonnegative();

const BranchDatabase = { branch_id: Id, database: Database };
/** Schema and name of a table, as the catalog has them. */
const TablePlace = { schema: z.string(), table: z.string() };
/** The primary key's columns, or one column that is unique and not null. */
const Key = z.array(z.string()).min(1).max(32);

const operation = <P extends z.ZodType, R extends z.ZodType>(definition: {
  /** One line for the control tool's help and `docs/protocol.md`. */
  summary: string;
  params: P;
  result: R;
  /** Milliseconds the edge waits for the reply before it answers `HOST_TIMEOUT`. */
  deadline: number;
  /** Calls run side by side: none joins one that runs already, or waits for another of the same branch. */
  sideBySide?: true;
}) => definition;

export const OPERATIONS = {
  'host.describe': operation({
    summary: 'Versions of the servers, how clones are made, and what is wrong with the set-up',
    params: z.strictObject({}),
    result: z.strictObject({
      agent_version: z.string(),
      postgres_version: z.string(),
      pooler_version: z.string(),
      /** `reflink`: a clone shares its blocks with the source; `copy`: every block is copied. */
      clone_method: z.enum(['reflink', 'copy']),
      warnings: z.array(z.string()),
    }),
    deadline: 10_000,
  }),

  'host.inventory': operation({
    summary: 'Every database, project and unfinished clone the host holds, for the reconciler',
    params: z.strictObject({}),
    result: z.strictObject({
      /** Which PostgreSQL cluster holds all this (`pg_control_system()`), as decimal digits. */
      system_identifier: z.string().min(1).max(20),
      branches: z.array(
        z.strictObject({
          project_id: Id,
          branch_id: Id,
          database: z.string(),
          /** `prepared`: logins and rules only; `building`: a clone without its final name; `ready`: published. */
          state: z.enum(['prepared', 'building', 'ready']),
        }),
      ),
      projects: z.array(z.strictObject({ project_id: Id, access_revision: z.int() })),
    }),
    deadline: 30_000,
  }),

  'branch.prepare': operation({
    summary: "Make the branch's logins, its network rules on both ports and its pooler entry",
    params: z.strictObject({
      ...BranchIdentity,
      verifiers: z.record(z.enum(BRANCH_ROLES), Verifier),
      access: Access,
    }),
    result: z.strictObject({}),
    deadline: 60_000,
  }),

  'branch.clone': operation({
    summary: 'Clone the source database under a name that no tenant can reach',
    params: z.strictObject({
      ...BranchIdentity,
      /** Database to clone while its clients go on; `null`: an empty one, for `main`. */
      source: Database.nullable(),
      /** Milliseconds to wait for sessions of the source that are in a transaction; then `SOURCE_BUSY`. */
      busy_wait: z.int().min(0).max(30_000),
    }),
    result: z.strictObject({
      /** False when an earlier call with these ids had made it already. */
      created: z.boolean(),
      strategy: z.enum(['reflink', 'file_copy', 'wal_log']).nullable(),
      /** Duration of the `CREATE DATABASE` statement. */
      clone_ms: Milliseconds,
      /** How long pooled clients of the source were held. */
      paused_ms: Milliseconds,
      source_bytes: z.int().nonnegative(),
    }),
    deadline: 900_000,
  }),

  'branch.finalize': operation({
    summary: 'Give the clone its name and its logins their rights, in one transaction',
    params: z.strictObject(BranchIdentity),
    result: z.strictObject({}),
    deadline: 60_000,
  }),

  'branch.prove': operation({
    summary: 'Log in through the pooler as the read-write login and run a query',
    params: z.strictObject({ ...BranchIdentity, password: z.string().min(16).max(128) }),
    result: z.strictObject({ login_ms: Milliseconds }),
    deadline: 30_000,
  }),

  'branch.drop': operation({
    summary: 'Close access to the branch, drop its database or half-made clone, and its logins',
    params: z.strictObject(BranchIdentity),
    result: z.strictObject({ dropped: z.boolean() }),
    deadline: 120_000,
  }),

  'project.drop': operation({
    summary: 'Drop whatever the project still has on this host, its group roles and rules included',
    params: z.strictObject({ job_id: Id, project_id: Id }),
    result: z.strictObject({ dropped_databases: z.int().nonnegative() }),
    deadline: 300_000,
  }),

  'access.apply': operation({
    summary:
      "Replace a project's rules, closures, write block; answers when both ports and open sessions obey",
    params: z.strictObject({ project_id: Id, access: Access }),
    result: z.strictObject({ revision: z.int().nonnegative() }),
    deadline: 30_000,
  }),

  'table.list': operation({
    summary: 'Tables and views that the read-write login may read, as many as a message holds',
    params: z.strictObject({
      ...BranchDatabase,
      /** `null`: every schema but the system's. */
      schema: z.string().nullable(),
      /** The last table of the part before; `null`: from the beginning. */
      after: z.strictObject({ schema: z.string(), name: z.string() }).nullable(),
    }),
    result: z.strictObject({ tables: z.array(Table), has_more: z.boolean() }),
    deadline: 15_000,
    sideBySide: true,
  }),

  'row.list': operation({
    summary: 'A page of rows in the order of the primary key, shorter when a message holds no more',
    params: z.strictObject({
      ...BranchDatabase,
      ...TablePlace,
      limit: z.int().min(1).max(ROWS_MAX),
      offset: z.int().nonnegative(),
    }),
    result: z.strictObject({
      columns: z.array(Column),
      /** A cell a column. */
      rows: z.array(z.array(Cell)).max(ROWS_MAX),
      has_more: z.boolean(),
      estimated_rows: z.int().nullable(),
    }),
    deadline: 15_000,
    sideBySide: true,
  }),

  'row.update': operation({
    summary: 'Change one cell as the read-write login',
    params: z.strictObject({
      ...BranchDatabase,
      ...TablePlace,
      primary_key: Key,
      id: RowId,
      column: z.string(),
      value: Scalar.nullable(),
      /** What the cell must hold; `null`: whatever it holds. */
      expected: z.strictObject({ value: Scalar.nullable() }).nullable(),
    }),
    result: z.strictObject({ columns: z.array(Column), row: z.array(Cell) }),
    deadline: 15_000,
    sideBySide: true,
  }),

  'row.delete': operation({
    summary: 'Delete rows as the read-write login, in one transaction',
    params: z.strictObject({
      ...BranchDatabase,
      ...TablePlace,
      primary_key: Key,
      ids: z.array(RowId).min(1).max(ROWS_MAX),
    }),
    result: z.strictObject({
      deleted: z.int().nonnegative(),
      /** Places in `ids` of those that named no row. */
      missing: z.array(z.int().nonnegative()),
    }),
    deadline: 15_000,
    sideBySide: true,
  }),
} as const;

export type Method = keyof typeof OPERATIONS;
export type Params<M extends Method> = z.output<(typeof OPERATIONS)[M]['params']>;
export type Result<M extends Method> = z.output<(typeof OPERATIONS)[M]['result']>;
