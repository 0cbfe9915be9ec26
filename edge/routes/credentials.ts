import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { answer, operation, operations } from '../api/operation.ts';
import { actorOf, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { referencedBranch } from '../branches/branch-reference.ts';
import { Credentials, credentialsRecord } from '../credentials/branch-credentials.ts';
import { auditEvents, branchCredentials, hosts } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { found, inProject } from '../projects/project-access.ts';
import { readSettings } from '../settings.ts';
import { BranchRefParams } from './parameters.ts';

const CredentialsQuery = z.strictObject({
  role: z.enum(['read_only']).optional().meta({
    description: 'The read-only login on both ports, instead of read-write (pooled) and owner (direct).',
  }),
});

export const credentialRoutes = operations().openapi(
  operation({
    access: 'credentials.read',
    operationId: 'getCredentials',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/credentials',
    summary: "A branch's connection URLs, with their passwords",
    description:
      'Each call is audited. Passwords open the database for writing, so this takes the scope for writing.',
    tags: ['Branches'],
    request: { params: BranchRefParams, query: CredentialsQuery },
    responses: { 200: answer('Spec 2.5.', Credentials) },
    failures: ['BRANCH_NOT_ACTIVE'],
  }),
  async (c) => {
    const { project_id: projectId, branch_ref: reference } = c.req.valid('param');
    const { role = 'default' } = c.req.valid('query');
    const [project, branchRows] = await inProject(c, projectId, (db) => [
      referencedBranch(db, projectId, reference),
    ]);
    const branch = found(branchRows);
    if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
    const db = databaseOf(c);
    const about = { projectId, branchId: branch.id, metadata: { role } };
    const [credentials, hostRows] = await db.batch([
      db.select().from(branchCredentials).where(eq(branchCredentials.branchId, branch.id)),
      db.select().from(hosts).where(eq(hosts.id, project.hostId)),
      db.insert(auditEvents).values(auditEvent('branch.credentials.viewed', actorOf(c), about, new Date())),
    ]);
    // A deletion came between the two reads.
    found(credentials);
    const keys = readSettings(c.env).CREDENTIAL_KEYS;
    c.header('Cache-Control', 'no-store');
    return c.json(await credentialsRecord(keys, branch, credentials, found(hostRows), role), 200);
  },
);
