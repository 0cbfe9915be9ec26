import { and, eq, isNotNull, isNull, lte, or } from 'drizzle-orm';
import { CLOUDFLARE_WORKERS_ADDRESS, isInNetwork } from '../../shared/cidr.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { claimedMachineKind, type OwnTokenSettings, verifyOwnToken } from '../authentication/own-tokens.ts';
import { lesserRole, type Principal } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { BoundedMap } from '../bounded-map.ts';
import { isSameText, sha256 } from '../crypto/encoding.ts';
import type { KeyPermission, Machine } from '../database/column-types.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { oauthGrants } from '../database/oauth-schema.ts';
import { apiKeys, trusts } from '../database/people-schema.ts';
import { organizationMembers, organizations, projects, users } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { logEvent } from '../log.ts';
import { isApiKey, readApiKey } from './api-keys.ts';

/**
 * How long an isolate caches a machine: a deleted key, or a lower role of its creator, counts within this
 * time.
 */
export const CACHED_MS = 10_000;
const CACHED_MACHINES = 10_000;
/** The last use is recorded at most once in this time. */
const USE_RECORDED_EVERY_MS = 60_000;

/** A key, a trust or a grant, with the user who created it. */
export interface MachineRecord extends Machine {
  tenantId: string;
  role: string;
  scopes: readonly string[];
  permissions: readonly KeyPermission[];
  projectId: string | null;
  branchPattern: string | null;
  cidrs: readonly string[] | null;
  /** Of a key. */
  secretHash: string | null;
  /** Null: a trust, which does not expire. A grant ends with the session in which it was made. */
  expiresAt: Date | null;
  lastUsedAt: Date | null;
  creator: { id: string; email: string; role: string };
}

const CREATOR = { id: users.id, email: users.email, role: organizationMembers.role };

/**
 * Reads a machine. There is none if its creator has left the tenant, because it acts in that user's name.
 */
const READS: Record<Machine['type'], (db: Database, id: string) => Promise<MachineRecord | null>> = {
  key: async (db, id) => {
    const [row] = await db
      .select({ key: apiKeys, creator: CREATOR })
      .from(apiKeys)
      .innerJoin(users, and(eq(users.id, apiKeys.createdBy), eq(users.tenantId, apiKeys.tenantId)))
      .innerJoin(organizations, eq(organizations.idpTenantId, apiKeys.tenantId))
      .innerJoin(organizationMembers, membership())
      .where(eq(apiKeys.id, id));
    return row ? { type: 'key', ...row.key, creator: row.creator } : null;
  },
  workload: async (db, id) => {
    const [row] = await db
      .select({ trust: trusts, tenantId: projects.tenantId, creator: CREATOR })
      .from(trusts)
      .innerJoin(projects, eq(projects.id, trusts.projectId))
      .innerJoin(users, and(eq(users.id, trusts.createdBy), eq(users.tenantId, projects.tenantId)))
      .innerJoin(organizations, eq(organizations.idpTenantId, projects.tenantId))
      .innerJoin(organizationMembers, membership())
      .where(eq(trusts.id, id));
    if (!row) return null;
    const { tenantId, creator } = row;
    const unlimited = { permissions: [], cidrs: null, secretHash: null, expiresAt: null };
    return { type: 'workload', ...row.trust, ...unlimited, tenantId, scopes: ['read', 'write'], creator };
  },
  grant: async (db, id) => {
    const [row] = await db
      .select({ grant: oauthGrants, creator: CREATOR, sessionEnds: sessions.expiresAt })
      .from(oauthGrants)
      .innerJoin(users, and(eq(users.id, oauthGrants.createdBy), eq(users.tenantId, oauthGrants.tenantId)))
      .innerJoin(organizations, eq(organizations.idpTenantId, oauthGrants.tenantId))
      .innerJoin(organizationMembers, membership())
      .leftJoin(sessions, eq(sessions.id, oauthGrants.sessionId))
      .where(and(eq(oauthGrants.id, id), isNotNull(oauthGrants.refreshId)));
    if (!row) return null;
    const { expiresAt: end } = row.grant;
    const expiresAt = row.sessionEnds !== null && row.sessionEnds < end ? row.sessionEnds : end;
    return { type: 'grant', ...row.grant, cidrs: null, secretHash: null, expiresAt, creator: row.creator };
  },
};

const TABLES = { key: apiKeys, workload: trusts, grant: oauthGrants };

const membership = () =>
  and(eq(organizationMembers.organizationId, organizations.id), eq(organizationMembers.userId, users.id));

const caches = new WeakMap<D1Database, BoundedMap<string, { record: MachineRecord; until: number }>>();

/** The machine as it was at most `CACHED_MS` ago; null if there is none. */
export async function machineRecord(
  binding: D1Database,
  { type, id }: Machine,
  now: Date,
): Promise<MachineRecord | null> {
  const cache = caches.get(binding) ?? new BoundedMap(CACHED_MACHINES);
  caches.set(binding, cache);
  const name = JSON.stringify([type, id]);
  const cached = cache.get(name);
  if (cached && now.getTime() < cached.until) return cached.record;
  const record = await READS[type](openDatabase(binding), id);
  if (record) cache.set(name, { record, until: now.getTime() + CACHED_MS });
  return record;
}

/** Records the use of a machine, unless one was recorded within the last minute. */
async function recordUse(binding: D1Database, record: MachineRecord, now: Date): Promise<void> {
  const due = new Date(now.getTime() - USE_RECORDED_EVERY_MS);
  if (record.lastUsedAt && record.lastUsedAt > due) return;
  record.lastUsedAt = now;
  const table = TABLES[record.type];
  await openDatabase(binding)
    .update(table)
    .set({ lastUsedAt: now })
    .where(and(eq(table.id, record.id), or(isNull(table.lastUsedAt), lte(table.lastUsedAt, due))));
}

interface MachineBearer {
  record: MachineRecord;
  /** Expiry of the key, or of the workload's token. */
  expiresAt: Date;
}

interface Context {
  settings: OwnTokenSettings;
  database: D1Database;
  /** Address of the client, if it is known. */
  address: string | null;
  now: Date;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * The kind of machine whose bearer token this is, by its form alone; null for that of a person.
 * @param isMcp whether the request is for `/mcp`: nothing else accepts the tokens of its clients
 */
export function machineTypeOf(
  settings: OwnTokenSettings,
  token: string,
  isMcp: boolean,
): Machine['type'] | null {
  if (isApiKey(token)) return 'key';
  const kind = claimedMachineKind(settings, token);
  if (kind === 'mcp') return isMcp ? 'grant' : null;
  return kind;
}

/**
 * The bearer of an API key, or of the access token of a workload or of a client of `/mcp`. It acts in the name of the user who
 * created it, with the lesser of both roles.
 * @returns or UNAUTHENTICATED; FORBIDDEN for a key that is used from an address outside its networks
 */
export async function authenticateMachine(
  type: Machine['type'],
  token: string,
  context: Context,
): Promise<Result<Principal, Failure>> {
  const { settings, database, now, waitUntil } = context;
  const bearer = await BEARERS[type](token, context);
  if (!bearer.ok) return bearer;
  const { record } = bearer.value;
  const refusal = refusedAddress(record, context);
  if (refusal) return fail(refusal);
  waitUntil(
    recordUse(database, record, now).catch((error: Error) => {
      logEvent('machine.use_not_recorded', { reason: error.message });
    }),
  );
  return ok(machinePrincipal(bearer.value, settings));
}

async function bearerOfKey(
  token: string,
  { database, now }: Context,
): Promise<Result<MachineBearer, Failure>> {
  const parts = readApiKey(token);
  if (!parts) return rejected('api_key_form_wrong');
  const record = await machineRecord(database, { type: 'key', id: parts.id }, now);
  // Compared even if there is no such key, so that the response time does not reveal which IDs exist.
  if (!(await isSameText(await sha256(parts.secret), record?.secretHash ?? '')) || !record) {
    return rejected('api_key_unknown');
  }
  const { expiresAt } = record;
  if (!expiresAt || expiresAt <= now) return rejected('api_key_expired');
  return ok({ record, expiresAt });
}

async function bearerOfGrant(
  token: string,
  { settings, database, now }: Context,
): Promise<Result<MachineBearer, Failure>> {
  const verified = await verifyOwnToken(settings, 'mcp', token, now);
  if (!verified.ok) return verified;
  const { sub, exp, scp } = verified.value;
  const record = await machineRecord(database, { type: 'grant', id: sub }, now);
  if (!record?.expiresAt || record.expiresAt <= now) return rejected('grant_gone');
  const scopes = record.scopes.filter((scope) => scp.includes(scope));
  return ok({ record: { ...record, scopes }, expiresAt: new Date(exp * 1000) });
}

async function bearerOfToken(
  token: string,
  { settings, database, now }: Context,
): Promise<Result<MachineBearer, Failure>> {
  const verified = await verifyOwnToken(settings, 'workload', token, now);
  if (!verified.ok) return verified;
  const { sub, exp } = verified.value;
  const record = await machineRecord(database, { type: 'workload', id: sub } satisfies Machine, now);
  if (!record) return rejected('trust_gone');
  return ok({ record, expiresAt: new Date(exp * 1000) });
}

const BEARERS: Record<Machine['type'], typeof bearerOfKey> = {
  key: bearerOfKey,
  workload: bearerOfToken,
  grant: bearerOfGrant,
};

/**
 * Null if the address is in the networks of the key, unless Workers of any customer of Cloudflare share it. Only a
 * bearer with the right secret learns the networks.
 */
function refusedAddress({ cidrs }: MachineRecord, { address }: Context): Failure | null {
  if (cidrs === null) return null;
  const isShared = address === CLOUDFLARE_WORKERS_ADDRESS;
  const isAdmitted = address !== null && !isShared && cidrs.some((cidr) => isInNetwork(address, cidr));
  if (isAdmitted) return null;
  const from = isShared ? `${address}, which all Cloudflare Workers share` : (address ?? '(unknown)');
  const message = `The API key cannot be used from your address ${from}. Use it from ${cidrs.join(', ')}, or create a key for your network with POST /api/v1/api-keys.`;
  const fields = { message, required: `an address in ${cidrs.join(', ')}` };
  return { code: 'FORBIDDEN', fields, reason: 'address' };
}

/** The machine as its record describes it now. */
export function machinePrincipal(
  { record, expiresAt }: MachineBearer,
  settings: Pick<OwnTokenSettings, 'BASE_URL' | 'SERVICE_NAME'>,
): Principal {
  const { type, id, creator, tenantId, permissions, projectId, branchPattern } = record;
  return {
    issuer: settings.BASE_URL,
    gid: id,
    email: creator.email,
    role: lesserRole(record.role, creator.role),
    scopes: record.scopes.map((scope) => `${settings.SERVICE_NAME}:${scope}`),
    service: settings.SERVICE_NAME,
    tenantId,
    issuedAt: new Date(0),
    expiresAt,
    userId: creator.id,
    machine: { type, id, creatorRole: creator.role, permissions, projectId, branchPattern },
  };
}
