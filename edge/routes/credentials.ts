import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { BRANCH_ROLES, type BranchRole } from '../../shared/branch/login.ts';
import { isPlainAddress } from '../../shared/cidr.ts';
import {
  auditedView,
  Credentials,
  type CredentialsView,
  toCredentialsResponse,
} from '../access/credentials.ts';
import { missingRules, networkLists, rulesOfBranches, withRanges } from '../access/network-rule.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { hasChanged, isOneOf, type Statement } from '../database/database.ts';
import {
  type BranchRow,
  branchCredentials,
  hosts,
  type ProjectRow,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import {
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  recordedResponse,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import { repeatIfLost } from '../lost-object.ts';
import { type AppContext, actorOf, connectingIp } from '../pipeline/context.ts';
import { enforceRequestLimit } from '../pipeline/limits.ts';
import { operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { addressOf } from '../projects/dns-names.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { readSettings } from '../settings.ts';
import { HOST_WORK_FAILURES } from './creations.ts';
import { BranchRefParams, inBranch, requireData } from './in-project.ts';

type ProjectIds = Pick<ProjectRow, 'id' | 'hostId'>;

/**
 * The only place where passwords leave the gateway.
 * @param audits join the batch that reads the passwords; one that changes nothing shows that a branch is gone
 * @param otherAddress of the client, besides that of the request
 */
async function readCredentials(
  c: AppContext,
  { id: projectId, hostId }: ProjectIds,
  branches: readonly BranchRow[],
  view: CredentialsView,
  audits: Statement[],
  otherAddress: string | null = null,
) {
  const db = databaseOf(c);
  const ids = branches.map(({ id }) => id);
  const [credentials, hostRows, rules, lists, projectRows, ...changes] = await db.batch([
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    db.select().from(hosts).where(eq(hosts.id, hostId)),
    rulesOfBranches(db, projectId, ids),
    networkLists(db),
    db
      .select({ maskedOnly: projects.maskedOnly, dnsName: projects.dnsName })
      .from(projects)
      .where(eq(projects.id, projectId)),
    ...audits,
  ]);
  // It may have been turned on since the request began, and these are the new passwords then.
  for (const branch of branches) requireData(c, found(projectRows), branch);
  // The branch was deleted or moved to another tenant between the two reads.
  if (changes.some((change) => !hasChanged(change))) throw new ApiError('NOT_FOUND');
  const settings = readSettings(c.env);
  const host = { ...found(hostRows) };
  host.dbHost = addressOf(settings, found(projectRows), host);
  const admitted = withRanges(rules, lists);
  return Promise.all(
    branches.map(async (branch) => {
      const ofBranch = credentials.filter(({ branchId }) => branchId === branch.id);
      found(ofBranch);
      return {
        ...(await toCredentialsResponse(settings.CREDENTIAL_KEYS, branch, ofBranch, host, view)),
        ...missingRules(branch, admitted, [connectingIp(c), otherAddress]),
      };
    }),
  );
}

/** The credentials of one branch. @param audits as they are recorded with the view */
const credentialsOf = async (
  c: AppContext,
  project: ProjectIds,
  branch: BranchRow,
  view: CredentialsView,
  audits: Statement[],
  otherAddress: string | null = null,
) => found(await readCredentials(c, project, [branch], view, audits, otherAddress));

/**
 * Adds the credentials to the records of a creation's response, which record a view of each.
 * @throws ApiError BRANCH_NOT_ACTIVE if one is not active any more
 */
export async function withCredentials<R extends { id: string }>(
  c: AppContext,
  project: ProjectIds,
  records: readonly R[],
  view: CredentialsView,
) {
  const db = databaseOf(c);
  const ids = records.map(({ id }) => id);
  const rows = await db.select().from(projectBranches).where(isOneOf(projectBranches.id, ids));
  const branches = ids.flatMap((id) => rows.find((row) => row.id === id && row.status === 'active') ?? []);
  if (branches.length < ids.length) throw new ApiError('BRANCH_NOT_ACTIVE');
  const now = new Date();
  const audits = branches.map((branch) => auditedView(db, branch, view, actorOf(c), now));
  const credentials = await readCredentials(c, project, branches, view, audits);
  return records.map((record, index) => ({ ...record, credentials: credentials[index] }));
}

const tags = ['Branches'];

const CredentialsQuery = z.strictObject({
  role: z.enum(['read_only', 'owner']).optional().meta({
    description:
      'Return this login for both URLs. Default: the read-write login for the pooled URL, the owner for the direct URL. Migrations that must survive clones of the branch use the pooled URL of the owner.',
  }),
  other_address: z.string().refine(isPlainAddress, 'not an IPv4 or IPv6 address').optional().meta({
    description:
      'Another address of the caller, which the warning is about too. `GET /api/v1/address` returns it over the other family.',
    example: '2001:db8::7',
  }),
});

const RotationRequest = z
  .strictObject({
    roles: z
      .array(z.enum(BRANCH_ROLES))
      .min(1)
      .refine((roles) => new Set(roles).size === roles.length, 'must not name a role twice')
      .optional()
      .meta({
        description: 'The logins that get new passwords, each at most once. Default: all three.',
        uniqueItems: true,
      }),
  })
  .meta({ id: 'RotationRequest', example: { roles: ['read_only'] } });

/** The URLs of the logins that were rotated: those of the read-only login if no other was. */
const viewOf = (roles: readonly BranchRole[]): CredentialsView =>
  roles.every((role) => role === 'read_only') ? 'read_only' : 'default';

const router = operations();

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'getCredentials',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/credentials',
    summary: 'Get the connection URLs of a branch',
    description:
      'The URLs contain passwords. Because these allow writing to the database, the write scope is required, and each call is recorded in the audit log.',
    tags,
    request: { params: BranchRefParams, query: CredentialsQuery },
    responses: { 200: response('The connection URLs.', Credentials) },
    failures: ['BRANCH_NOT_ACTIVE'],
  }),
  async (c) => {
    const { role = 'default', other_address: otherAddress = null } = c.req.valid('query');
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
    const audited = auditedView(databaseOf(c), branch, role, actorOf(c), new Date());
    return c.json(await credentialsOf(c, project, branch, role, [audited], otherAddress), 200);
  },
);

router.openapi(
  operation({
    access: 'credentials.rotate',
    operationId: 'rotateCredentials',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate',
    summary: 'Replace the passwords of a branch',
    description:
      'Sets new passwords for all three logins, or for those that `roles` names. The old passwords stop working immediately and their database sessions end. The URLs are those of the read-only login if only that login was rotated. A repeated request with the same `Idempotency-Key` shows the current passwords, which the audit log records as a view. Limited to five rotations per hour and branch.',
    tags,
    request: {
      params: BranchRefParams,
      headers: IdempotencyHeader,
      body: optionalJsonBody(RotationRequest),
    },
    responses: {
      200: response('The connection URLs with the new passwords.', Credentials, 'Idempotency-Replayed'),
    },
    failures: [...KEY_FAILURES, 'BRANCH_NOT_ACTIVE', 'PROJECT_NOT_ACTIVE', ...HOST_WORK_FAILURES],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const key = c.req.valid('header')['idempotency-key'];
    const { roles: named = BRANCH_ROLES } = c.req.valid('json');
    const roles = BRANCH_ROLES.filter((role) => named.includes(role));
    const view = viewOf(roles);
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, { roles });
    const [project, branch, uses] = await inBranch(c, c.req.valid('param'), (db) => [
      recordedUses(db, keyUse, new Date()),
    ]);
    if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
    const { hostId } = project;
    // If storing succeeds and applying fails, a repeated request with the same key gets the passwords once
    // they work.
    if (unwrap(recordedResponse(uses, keyUse))) {
      unwrap(await repeatIfLost(() => coordinatorOf(c.env, projectId).applyAccess()));
      const audited = auditedView(databaseOf(c), branch, view, actorOf(c), new Date());
      const credentials = await credentialsOf(c, project, branch, view, [audited]);
      c.header('Idempotency-Replayed', 'true');
      return c.json(credentials, 200);
    }
    await enforceRequestLimit(c, bucketOf.rotation(branch.id));
    const rotation = { projectId, branchId: branch.id, roles, hostId, actor: actorOf(c), keyUse };
    unwrap(await coordinatorOf(c.env, projectId).rotateCredentials(rotation));
    return c.json(await credentialsOf(c, project, branch, view, []), 200);
  },
);

export const credentialRoutes = router;
