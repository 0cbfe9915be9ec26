import type { BatchResponse } from 'drizzle-orm/batch';
import { z } from 'zod';
import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';
import { BoundedMap } from '../bounded-map.ts';
import { FULL_CONTENT, isUnmasked, maskedOnlyFailure } from '../branches/branch.ts';
import { referencedBranch } from '../branches/branch-reference.ts';
import type { BranchContent } from '../database/column-types.ts';
import type { Database, Statement } from '../database/database.ts';
import type { BranchRow } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { STREAM_SECONDS_MAX } from '../events/open-streams.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { missing } from '../missing.ts';
import { seesFullData } from '../permissions.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { countUnknownProject, requireAdmission } from '../pipeline/limits.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import { type ProjectView, readProject, recordDeniedAccess } from '../tenancy/project-access.ts';

/**
 * The project of a request and the results of `queries`, read in one batch concurrently with the rate
 * limiter's decision. A handler calls this before anything that has an effect.
 * @throws ApiError NOT_FOUND also for a project that the caller may not see, RATE_LIMITED
 */
export async function inProject<const Q extends readonly Statement[]>(
  c: AppContext,
  projectId: string,
  queries: (db: Database) => Q,
): Promise<[ProjectView, ...BatchResponse<Q>]> {
  const db = databaseOf(c);
  const [outcome] = await Promise.all([readProject(db, c.var, projectId, queries(db)), requireAdmission(c)]);
  const read = unwrap(outcome);
  if (read) return read;
  await countUnknownProject(c);
  auditDenial(c, 'project', projectId);
  throw ApiError.of(missing('project'));
}

/**
 * As `inProject`, with the branch that the path names by ID or name.
 * @throws ApiError as `inProject`, NOT_FOUND also for a branch that the caller may not use
 */
export async function inBranch<const Q extends readonly Statement[]>(
  c: AppContext,
  { project_id: projectId, branch_ref: reference }: { project_id: string; branch_ref: string },
  queries: (db: Database) => Q,
): Promise<[ProjectView, BranchRow, ...BatchResponse<Q>]> {
  const [project, branchRows, ...results] = await inProject(c, projectId, (db) => [
    referencedBranch(db, projectId, reference, c.var.principal),
    ...queries(db),
  ]);
  const branch = found(branchRows as BranchRow[], missing('branch', reference));
  if (!c.var.isOfRecord) requireData(c, project, branch);
  return [project, branch, ...(results as BatchResponse<Q>)];
}

/**
 * The guard of `masked_only`: refuses what gives unmasked data to those who get masked data only.
 * @param content of the branch, or of the source of what is made
 * @throws ApiError FORBIDDEN
 */
export function requireData(
  c: AppContext,
  project: Pick<ProjectView, 'maskedOnly'>,
  content: Pick<BranchContent, 'data' | 'keepTables'>,
): void {
  if (!project.maskedOnly || !isUnmasked(content) || seesFullData(c.var.principal)) return;
  throw ApiError.of(maskedOnlyFailure());
}

/** The same for what decides about data, such as the masking policy. @throws ApiError FORBIDDEN */
export const requireFullData = (c: AppContext, project: Pick<ProjectView, 'maskedOnly'>): void =>
  requireData(c, project, FULL_CONTENT);

/** Audits the request if the ID is another tenant's, after the response. */
export const auditDenial = (c: AppContext, kind: 'project' | 'job', id: string): void =>
  c.executionCtx.waitUntil(recordDeniedAccess(primaryOf(c), actorOf(c), c.req.method, { kind, id }));

/** Failures of every operation in a branch's database. */
export const HOST_FAILURES = [
  'BRANCH_NOT_ACTIVE',
  'BRANCH_FOLLOWING',
  'DATABASES_CLOSED',
  'LOGIN_REFUSED',
  'STATEMENT_REFUSED',
  'TIME_LIMIT_REACHED',
  'PROJECT_BUSY',
  'HOST_BUSY',
  'HOST_FULL',
  'HOST_UNAVAILABLE',
  'HOST_UPGRADE_REQUIRED',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
] as const;

const HELD = 'An import or a copy fills the branch. Wait for the end of its job, or cancel it.';

/**
 * The active branch of the reference, with a function that calls its host.
 * @throws ApiError
 */
export async function branchOf(
  c: AppContext,
  reference: { project_id: string; branch_ref: string },
  use: 'read' | 'change',
) {
  const [project, branch] = await inBranch(c, reference, () => []);
  return usableBranch(c, project, branch, use);
}

/** The same for a branch that was read with other records. @throws ApiError */
export function usableBranch(c: AppContext, project: ProjectView, branch: BranchRow, use: 'read' | 'change') {
  if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
  if (branch.hold === 'import') throw new ApiError('BRANCH_NOT_ACTIVE', { message: HELD });
  if (branch.hold === 'following' && use === 'change') throw new ApiError('BRANCH_FOLLOWING');
  const access = ACCESS_OF_STATE[project.storageState];
  if (access === 'closed') throw new ApiError('DATABASES_CLOSED');
  if (use === 'change' && access === 'write_blocked') throw new ApiError('WRITE_BLOCKED');
  const database = { branch_id: branch.id, database: branch.databaseName };
  const call = async <M extends Method>(method: M, params: Params<M>) =>
    unwrap(await callHostForClient(c.env, project.hostId, method, params));
  return { project, branch, database, call };
}

/** Of the branch that a caller has read, and where it was. */
interface Read {
  hostId: string;
  database: { branch_id: string; database: string };
  /** Unix milliseconds. */
  at: number;
}

/** A client that turns pages makes the next request within this time. */
const NEXT_READ_WITHIN_MS = 10_000;
const REMEMBERED_READS = 10_000;
const reads = new BoundedMap<string, Read>(REMEMBERED_READS);

/** By caller and reference. */
function readKey(c: AppContext, { project_id, branch_ref }: { project_id: string; branch_ref: string }) {
  const { tenantId, userId, machine } = c.var.principal;
  return JSON.stringify([tenantId, userId, machine?.id ?? null, project_id, branch_ref]);
}

/**
 * Calls a reading operation of the branch. For a caller that has just read the same branch, the call sets out while the
 * records are read. Its result is used only if they say that the caller still may, and that the branch is where it was.
 * @throws ApiError as `branchOf`, and the failure of the call
 */
export async function callReading<M extends 'row.list'>(
  c: AppContext,
  reference: { project_id: string; branch_ref: string },
  method: M,
  paramsOf: (database: Read['database']) => Params<M>,
) {
  const key = readKey(c, reference);
  const last = reads.get(key);
  const isRecent = last !== undefined && Math.abs(Date.now() - last.at) < NEXT_READ_WITHIN_MS;
  const early = isRecent
    ? requireAdmission(c).then(() => callHostForClient(c.env, last.hostId, method, paramsOf(last.database)))
    : null;
  // Nobody waits for it if the records refuse the request.
  early?.catch(() => {});
  const { project, database, call } = await branchOf(c, reference, 'read');
  const { hostId } = project;
  const isSame = JSON.stringify([last?.hostId, last?.database]) === JSON.stringify([hostId, database]);
  const result = early && isSame ? unwrap(await early) : await call(method, paramsOf(database));
  reads.set(key, { hostId, database, at: Date.now() });
  return { result, database, call };
}

/** Path parameters. A malformed UUID is reported as 404, like an unknown one. */
const Id = z.uuid().toLowerCase();

export const ProjectParams = z.strictObject({ project_id: Id });
export const BranchRefParams = z.strictObject({
  project_id: Id,
  // Specification 4.3.
  branch_ref: z.string().meta({ description: 'The id or the name of the branch.' }),
});
export const SnapshotParams = z.strictObject({ project_id: Id, snapshot_id: Id });
export const ChangeParams = z.strictObject({ project_id: Id, change_id: Id });
export const DeletedBranchParams = z.strictObject({ project_id: Id, deleted_branch_id: Id });
export const TableParams = BranchRefParams.extend({
  table: z.string().meta({ description: 'The name of the table, without its schema.' }),
});
export const ProjectMemberParams = z.strictObject({ project_id: Id, user_id: Id });
export const MemberParams = z.strictObject({ user_id: Id });
export const InvitationParams = z.strictObject({ invitation_id: Id });
export const SessionParams = z.strictObject({ session_id: Id });
export const RuleParams = z.strictObject({ project_id: Id, rule_id: Id });
export const TrustParams = z.strictObject({ project_id: Id, trust_id: Id });
export const OAuthGrantParams = z.strictObject({ grant_id: z.uuid().toLowerCase() });
export const ApiKeyParams = z.strictObject({
  key_id: z.string().meta({ description: 'The part of the key between `bg_` and the next `_`.' }),
});
export const WebhookParams = z.strictObject({ webhook_id: Id });
export const JobParams = z.strictObject({ job_id: Id });
export const TenantParams = z.strictObject({
  tenant_id: z.string().meta({ description: 'As in the tokens of its users.', example: 'acme' }),
});
export const ProviderParams = z.strictObject({ provider_id: Id });
export const ProviderDomainParams = z.strictObject({
  provider_id: Id,
  domain: z.string().meta({ example: 'example.com' }),
});
export const HostParams = z.strictObject({ host_id: Id });

/** Query of every stream of server-sent events. */
export const StreamQuery = z.strictObject({
  seconds: z.coerce.number().int().min(0).max(STREAM_SECONDS_MAX).default(STREAM_SECONDS_MAX).meta({
    description:
      'Duration of the stream in seconds. Clients of server-sent events reconnect automatically when it ends.',
  }),
});

/** Of a query. */
export const Flag = (fallback: boolean) =>
  z
    .enum(['true', 'false'])
    .default(fallback ? 'true' : 'false')
    .transform((text) => text === 'true');

/** In a query or a body: what a protected branch requires. */
export const Confirm = z.string().max(100).optional().meta({
  description: 'The name of the branch; required if it is protected.',
});
