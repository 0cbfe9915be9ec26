import { and, asc, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { ClientDetails } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { RequestTiming } from '../authentication/key-cache.ts';
import { signOwnToken } from '../authentication/own-tokens.ts';
import { hasChanged, inOneBatch, insertIf, openDatabase } from '../database/database.ts';
import { trusts } from '../database/machine-schema.ts';
import { auditEvents, projects } from '../database/schema.ts';
import { isLocalGateway } from '../destination.ts';
import type { Settings } from '../settings.ts';
import { hasClaims, ID_TOKEN_MAX, idTokenProblem, readIdToken } from './id-token.ts';
import { type MachineRecord, machineRecord } from './machine-record.ts';

export const GRANT_TYPE = 'urn:ietf:params:oauth:grant-type:token-exchange';
export const ID_TOKEN = 'urn:ietf:params:oauth:token-type:id_token';
export const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';
const TOKEN_SECONDS = 900;
const PROJECT_PATH = '/api/v1/projects/';

interface Request {
  grant_type: string;
  subject_token_type: string;
  subject_token: string;
  resource: string;
}

interface Context extends RequestTiming {
  settings: Settings;
  database: D1Database;
  client: ClientDetails;
}

interface IssuedToken {
  token: string;
  expiresInSeconds: number;
  scopes: string[];
}

/** Every refusal looks the same, so that nobody learns which projects and trusts exist. */
const refused = (reason: string) => fail<Failure>({ code: 'invalid_request', reason });

/**
 * Exchanges the ID token of a workload for an access token (RFC 8693), if a trust of the project in `resource`
 * (RFC 8707) accepts it; of several trusts, the oldest. A refusal writes nothing.
 * @throws ApiError KEYS_UNAVAILABLE while the issuer's keys cannot be fetched
 */
export async function exchangeToken(
  request: Request,
  context: Context,
): Promise<Result<IssuedToken, Failure>> {
  const { settings, database, now } = context;
  if (request.grant_type !== GRANT_TYPE) return fail({ code: 'unsupported_grant_type' });
  if (request.subject_token_type !== ID_TOKEN) return refused('token_type_unknown');
  const projectId = projectIn(request.resource, settings);
  if (projectId === null) return fail({ code: 'invalid_target' });
  const token = request.subject_token;
  const claimed = token.length > ID_TOKEN_MAX ? null : readIdToken(token);
  if (!claimed) return refused('token_form_wrong');
  const candidates = await openDatabase(database)
    .select()
    .from(trusts)
    .where(and(eq(trusts.projectId, projectId), eq(trusts.issuer, claimed.issuer)))
    .orderBy(asc(trusts.createdAt), asc(trusts.id));
  // The claims are compared first, so that only a token that would be accepted makes the gateway fetch keys.
  const trust = candidates.find(
    ({ audience, claims }) =>
      [claimed.payload.aud].flat().includes(audience) && hasClaims(claimed.payload, claims),
  );
  if (!trust) return refused('no_trust');
  const timing = { now, waitUntil: context.waitUntil, isLocal: isLocalGateway(settings) };
  const problem = await idTokenProblem(token, claimed, trust.audience, timing);
  if (problem) return refused(problem);
  const record = await machineRecord(database, { type: 'workload', id: trust.id }, now);
  if (!record) return refused('trust_gone');
  if (!(await recordIssue(record, claimed.payload.sub, context))) return refused('trust_gone');
  const issuedAt = now;
  const expiresAt = new Date(now.getTime() + TOKEN_SECONDS * 1000);
  return ok({
    token: await signOwnToken(settings, 'workload', { sub: trust.id }, { issuedAt, expiresAt }),
    expiresInSeconds: TOKEN_SECONDS,
    scopes: record.scopes.map((scope) => `${settings.SERVICE_NAME}:${scope}`),
  });
}

/** The project whose URL this is; null for any other text. */
function projectIn(resource: string, { BASE_URL }: Settings): string | null {
  const prefix = BASE_URL + PROJECT_PATH;
  if (!resource.startsWith(prefix)) return null;
  return z.uuid().toLowerCase().safeParse(resource.slice(prefix.length)).data ?? null;
}

/** Audits the token with the subject that got it, unless the trust was deleted. */
async function recordIssue(
  record: MachineRecord,
  subject: string | undefined,
  { database, client, now }: Context,
): Promise<boolean> {
  const db = openDatabase(database);
  const { type, id, creator, tenantId } = record;
  const actor = { userId: creator.id, email: creator.email, tenantId, machine: { type, id }, ...client };
  const about = { projectId: record.projectId ?? '', metadata: { subject: subject?.slice(0, 256) ?? null } };
  const event = auditEvent('trust.token_issued', actor, about, now);
  const isThere = sql`exists (select 1 from ${trusts} join ${projects} on ${projects.id} = ${trusts.projectId}
    where ${trusts.id} = ${id} and ${projects.tenantId} = ${tenantId})`;
  const [inserted] = await inOneBatch(db, [
    insertIf(db, auditEvents, event, isThere),
    db.update(trusts).set({ lastUsedAt: now }).where(eq(trusts.id, id)),
  ]);
  return hasChanged(inserted);
}
