import { and, eq, gt, isNotNull, isNull, lte, or, type SQL, sql } from 'drizzle-orm';
import { base64url } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { rejection } from '../authentication/rejection.ts';
import { sha256 } from '../crypto/encoding.ts';
import { type Actor, type AuditActor, KEY_PERMISSIONS } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type OAuthGrantRow, oauthClients, oauthGrants } from '../database/oauth-schema.ts';
import { auditEvents, projects, users } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { MachineRole } from '../machines/api-keys.ts';
import { missing } from '../missing.ts';
import { BranchPattern } from '../tenancy/branch-pattern.ts';
import { type CheckedRequest, scopesOf } from './authorization-request.ts';
import type { OAuthClient } from './clients.ts';

/** What people let clients of the Model Context Protocol do in their name. */

/** The choices of a person on the consent page. */
export const Consent = z.strictObject({
  role: MachineRole,
  scopes: z
    .array(z.enum(['read', 'write']))
    .min(1)
    .max(2)
    .meta({ description: 'At most what the client asks for.', example: ['read', 'write'] }),
  permissions: z.array(z.enum(KEY_PERMISSIONS)).max(KEY_PERMISSIONS.length).default([]).meta({
    description:
      '`data.full`: the client may use unmasked data in projects whose members get masked data only. Only owners and admins can give it.',
    example: [],
  }),
  project_id: z
    .uuid()
    .toLowerCase()
    .nullable()
    .meta({ description: 'The only project of the client. Null: those that its role reaches.' }),
  branch_pattern: BranchPattern.nullable().meta({
    description: 'The client can use only branches whose name matches. Null: every branch.',
    example: 'agent-*',
  }),
});

export const OAuthGrant = z
  .strictObject({
    id: z.uuid(),
    client_id: z.string().meta({ example: 'https://agent.example.com/client.json' }),
    client_name: z.string().meta({ description: 'As the client calls itself.', example: 'Agent' }),
    redirect_host: z
      .string()
      .meta({ description: 'Where the code of the sign-in was sent.', example: '127.0.0.1:49152' }),
    role: MachineRole,
    scopes: z.array(z.string()).meta({ example: ['branchgate:read', 'branchgate:write'] }),
    permissions: z.array(z.enum(KEY_PERMISSIONS)).meta({ example: [] }),
    project_id: z.uuid().nullable().meta({ description: 'Null: the projects that its role reaches.' }),
    branch_pattern: BranchPattern.nullable().meta({ example: 'agent-*' }),
    expires_at: z.iso.datetime(),
    last_used_at: z.iso.datetime().nullable().meta({ description: 'Exact to a minute. Null: never.' }),
    created_by: z.uuid().meta({ description: 'The user in whose name the client acts.' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'OAuthGrant' });

export const toGrantResponse = (row: OAuthGrantRow, service: string): z.output<typeof OAuthGrant> => ({
  id: row.id,
  client_id: row.clientId,
  client_name: row.clientName,
  redirect_host: new URL(row.redirectUri).host,
  role: row.role,
  scopes: scopesOf({ SERVICE_NAME: service }, row.scopes),
  permissions: row.permissions,
  project_id: row.projectId,
  branch_pattern: row.branchPattern,
  expires_at: row.expiresAt.toISOString(),
  last_used_at: row.lastUsedAt?.toISOString() ?? null,
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
});

const isOpen = (id: SQL, now: Date) =>
  isThere(sessions, and(eq(sessions.id, id), gt(sessions.expiresAt, now)));

/** Whether a grant can still be used: its code was exchanged, and its session is open. */
export const isUsable = (now: Date) =>
  and(
    isNotNull(oauthGrants.refreshId),
    gt(oauthGrants.expiresAt, now),
    or(isNull(oauthGrants.sessionId), isOpen(sql`${oauthGrants.sessionId}`, now)),
  );

const isOver = (now: Date) =>
  or(
    lte(oauthGrants.expiresAt, now),
    and(isNull(oauthGrants.refreshId), lte(oauthGrants.codeExpiresAt, now)),
  );

const about = ({ id, clientId, clientName, role, permissions, projectId, branchPattern }: OAuthGrantRow) => ({
  ...(projectId && { projectId }),
  metadata: {
    grant_id: id,
    client_id: clientId,
    client_name: clientName,
    role,
    branch_pattern: branchPattern,
    ...(permissions.length > 0 && { permissions }),
  },
});

const GRANTS_MAX = 50;
const CODE_MS = 60_000;
export const GRANT_DAYS = 30;
const GRANT_MS = GRANT_DAYS * 86_400_000;
const CODE_BYTES = 32;

interface NewGrant {
  request: CheckedRequest;
  client: OAuthClient;
  consent: z.output<typeof Consent>;
}

/**
 * Stores what a person lets a client do, and audits it, in one batch. The client has a minute to exchange the code.
 * @returns the grant and its authorization code; or OAUTH_GRANT_LIMIT_REACHED, NOT_FOUND, UNAUTHENTICATED if the session was
 *   ended meanwhile
 */
export async function insertGrant(
  db: Database,
  { request, client, consent }: NewGrant,
  { sessionId }: Pick<Principal, 'sessionId'>,
  actor: Actor,
  now: Date,
): Promise<Result<{ row: OAuthGrantRow; code: string }, Failure>> {
  const { tenantId, userId } = actor;
  const code = base64url.encode(crypto.getRandomValues(new Uint8Array(CODE_BYTES)));
  const row: OAuthGrantRow = {
    id: crypto.randomUUID(),
    clientId: client.id,
    clientName: client.name,
    role: consent.role,
    scopes: consent.scopes,
    permissions: consent.permissions,
    projectId: consent.project_id,
    branchPattern: consent.branch_pattern,
    sessionId: sessionId ?? null,
    codeHash: await sha256(code),
    codeExpiresAt: new Date(now.getTime() + CODE_MS),
    redirectUri: request.redirectUri,
    codeChallenge: request.codeChallenge,
    resource: request.resource,
    refreshId: null,
    previousRefreshId: null,
    refreshedAt: null,
    expiresAt: new Date(now.getTime() + GRANT_MS),
    lastUsedAt: null,
    createdBy: userId,
    tenantId,
    createdAt: now,
  };
  await db.delete(oauthGrants).where(and(eq(oauthGrants.createdBy, userId), isOver(now)));
  const count = sql`(select count(*) from ${oauthGrants} where created_by = ${userId} and tenant_id = ${tenantId})`;
  const isSession = sessionId === undefined ? sql`true` : isOpen(sql`${sessionId}`, now);
  const isProject = row.projectId === null ? sql`true` : isOfTenant(projects, row.projectId, tenantId);
  const written = await guardedWrite(db, {
    decides: [oauthGrants, row],
    require: [
      [isOfTenant(users, userId, tenantId), 'NOT_FOUND'],
      [isSession, rejection('session_ended')],
      [isProject, missing('project')],
      [sql`${count} < ${GRANTS_MAX}`, { code: 'OAUTH_GRANT_LIMIT_REACHED', fields: { limit: GRANTS_MAX } }],
    ],
    rest: (isWritten) => [
      insertIf(db, auditEvents, auditEvent('oauth_grant.created', actor, about(row), now), isWritten),
      db
        .update(oauthClients)
        .set({ lastUsedAt: now })
        .where(and(eq(oauthClients.id, client.id), isWritten)),
    ],
  });
  return written.ok ? ok({ row, code }) : written;
}

/** Why a grant ended before its time, in the audit log. */
type EndReason = 'revoked' | 'client_signed_out' | 'code_reused' | 'code_misused' | 'refresh_token_reused';

/** Ends a grant and audits it, in one batch. Its tokens are refused within 10 s. @returns or NOT_FOUND if it has ended */
export function endGrant(
  db: Database,
  row: OAuthGrantRow,
  reason: EndReason,
  actor: AuditActor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const isIt = and(eq(oauthGrants.id, row.id), eq(oauthGrants.tenantId, row.tenantId));
  const { metadata, ...subject } = about(row);
  const details = { ...subject, metadata: { ...metadata, reason } };
  return guardedWrite(db, {
    decides: [auditEvents, auditEvent('oauth_grant.revoked', actor, details, now)],
    require: [[isThere(oauthGrants, isIt), 'NOT_FOUND']],
    rest: (isWritten) => [db.delete(oauthGrants).where(and(isIt, isWritten))],
  });
}

/** The grants that a principal may see: all of the tenant, or their own. */
export const grantsOf = (
  { tenantId, userId }: Pick<Principal, 'tenantId' | 'userId'>,
  reach: 'all' | 'own',
) => and(eq(oauthGrants.tenantId, tenantId), reach === 'own' ? eq(oauthGrants.createdBy, userId) : undefined);

/** Ends a grant that the principal may see. @returns or NOT_FOUND */
export async function revokeGrant(
  db: Database,
  id: string,
  seen: SQL | undefined,
  actor: Actor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const [row] = await db
    .select()
    .from(oauthGrants)
    .where(and(eq(oauthGrants.id, id), seen));
  return row ? endGrant(db, row, 'revoked', actor, now) : fail({ code: 'NOT_FOUND' });
}
