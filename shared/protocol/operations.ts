import { z } from 'zod';
import { BRANCH_ROLES } from '../branch/login.ts';
import { ProjectSizes } from '../measurement.ts';
import { ProjectExtensions } from '../project/extensions.ts';
import { Access, Verifier } from './access.ts';
import { CHANGE_OPERATIONS } from './change-operations.ts';
import { DIFFERENCE_OPERATIONS } from './difference-operations.ts';
import { HostDescription } from './host-description.ts';
import {
  FreeBytes,
  HostedBranch,
  HostedProject,
  HostedSnapshot,
  INVENTORY_OPERATIONS,
  SystemIdentifier,
} from './inventory-operations.ts';
import { Database, Id, operation } from './operation.ts';
import {
  BranchIdentity,
  BusyWait,
  CloneResult,
  Milliseconds,
  newBranches,
  Password,
  Source,
} from './operation-fields.ts';
import { PAST_OPERATIONS } from './past-operations.ts';
import { REHEARSAL_OPERATIONS } from './rehearsal-operations.ts';
import { ROW_OPERATIONS } from './row-operations.ts';
import { SNAPSHOT_OPERATIONS } from './snapshot-operations.ts';
import { SQL_OPERATIONS } from './sql-operations.ts';
import { STANDBY_OPERATIONS } from './standby.ts';
import { TRANSFER_OPERATIONS } from './transfer-operations.ts';
import { TRIAL_OPERATIONS } from './trial-operations.ts';

/**
 * The operations of a database host: method → parameters, result, deadline. Every operation that changes
 * something is idempotent: repeated with the same ids, it finishes or confirms the first call. The control
 * tool has the same operations as commands.
 */
export const OPERATIONS = {
  'host.describe': operation({
    summary: 'Report versions, the clone method, disk, backups and configuration problems',
    params: z.strictObject({}),
    result: HostDescription,
    deadline: 10_000,
  }),

  'host.inventory': operation({
    summary: 'List every database, snapshot, project and unfinished clone on the host, and its free disk',
    params: z.strictObject({}),
    result: z.strictObject({
      system_identifier: SystemIdentifier,
      /** Null: the agent is of a release that does not tell. */
      free_bytes: FreeBytes.nullable(),
      branches: z.array(HostedBranch),
      projects: z.array(HostedProject),
      /** Null: the agent is of a release that does not tell. */
      snapshots: z.array(HostedSnapshot).nullable(),
    }),
    deadline: 30_000,
  }),

  'host.extensions': operation({
    summary: 'List the extensions of this host, and whether the owner of a branch can create them',
    params: z.strictObject({}),
    result: z.strictObject({
      extensions: z.array(
        z.strictObject({
          name: z.string(),
          default_version: z.string(),
          comment: z.string(),
          trusted: z.boolean(),
        }),
      ),
    }),
    deadline: 10_000,
    concurrent: true,
  }),

  'branch.sessions': operation({
    summary: 'Count the sessions of clients with PostgreSQL directly, which a clone of the branch ends',
    params: z.strictObject({ branch_id: Id, database: Database }),
    result: z.strictObject({ direct: z.int().nonnegative() }),
    deadline: 10_000,
    concurrent: true,
  }),

  'branch.prepare': operation({
    summary: 'Create the logins, the network rules on both ports and the pooler entries of branches',
    params: z.strictObject({
      ...newBranches({ verifiers: z.record(z.enum(BRANCH_ROLES), Verifier) }),
      access: Access,
    }),
    result: z.strictObject({}),
    deadline: 60_000,
  }),

  'branch.clone': operation({
    summary: 'Clone the source database, once for all branches, under names that no tenant can reach',
    params: z.strictObject({
      ...newBranches({}),
      /**
       * Database to clone, whose clients stay connected, or a snapshot; `null`: creates an empty one, for
       * `main`.
       */
      source: Source.nullable(),
      /** Extensions that an empty one gets, and each later database of the project. */
      extensions: ProjectExtensions.optional(),
      busy_wait: BusyWait,
    }),
    /** Outcome of the clone of the source; `created` is false when no clone was missing. */
    result: CloneResult,
    deadline: 900_000,
  }),

  'branch.finalize': operation({
    summary: 'Rename the clones to their final names and grant their logins their rights, in one transaction',
    params: z.strictObject(newBranches({})),
    result: z.strictObject({}),
    deadline: 120_000,
  }),

  'branch.prove': operation({
    summary: 'Log in to each branch through the pooler as the read-write login, and run a query',
    params: z.strictObject(newBranches({ password: Password })),
    /** Time of the slowest login. */
    result: z.strictObject({ login_ms: Milliseconds }),
    deadline: 120_000,
  }),

  'branch.rename': operation({
    summary: 'End the sessions of a branch, and give its database another name',
    /** `database` is the new name; the host knows the present one. */
    params: z.strictObject(BranchIdentity),
    /** False if the database has the name already. */
    result: z.strictObject({ renamed: z.boolean() }),
    deadline: 60_000,
  }),

  'branch.drop': operation({
    summary: 'Close access to the branch, and drop its database or unfinished clone and its logins',
    params: z.strictObject({
      ...BranchIdentity,
      /**
       * Only what this job has made: the branch may have been restored meanwhile. `null`: whatever there is.
       */
      made_by: Id.nullable(),
    }),
    result: z.strictObject({ dropped: z.boolean() }),
    deadline: 120_000,
  }),

  'project.size': operation({
    summary: 'Read the present size of each database of a project',
    params: z.strictObject({ project_id: Id }),
    result: ProjectSizes,
    deadline: 15_000,
    concurrent: true,
  }),

  'project.drop': operation({
    summary: 'Drop all databases, group roles and rules of a project on this host',
    params: z.strictObject({
      job_id: Id,
      project_id: Id,
      /**
       * The newest access of the project that the caller knew: with a newer one the project is in use here, and the call
       * is late. Left out: the project is deleted.
       */
      up_to_revision: z.int().nonnegative().optional(),
    }),
    result: z.strictObject({ dropped_databases: z.int().nonnegative() }),
    deadline: 300_000,
  }),

  'access.apply': operation({
    summary:
      'Replace the rules, closures and write block of a project, and wait until both ports and open sessions apply them',
    params: z.strictObject({ project_id: Id, access: Access }),
    result: z.strictObject({ revision: z.int().nonnegative() }),
    deadline: 30_000,
  }),

  ...INVENTORY_OPERATIONS,
  ...SNAPSHOT_OPERATIONS,
  ...ROW_OPERATIONS,
  ...REHEARSAL_OPERATIONS,
  ...CHANGE_OPERATIONS,
  ...DIFFERENCE_OPERATIONS,
  ...TRIAL_OPERATIONS,
  ...TRANSFER_OPERATIONS,
  ...PAST_OPERATIONS,
  ...STANDBY_OPERATIONS,
  ...SQL_OPERATIONS,
} as const;

export type Method = keyof typeof OPERATIONS;
export type Params<M extends Method> = z.output<(typeof OPERATIONS)[M]['params']>;
/** What the calls of an operation are counted with. */
export const laneOf = (method: Method): 'sql' | 'others' => ('lane' in OPERATIONS[method] ? 'sql' : 'others');

export type MethodResult<M extends Method> = z.output<(typeof OPERATIONS)[M]['result']>;
