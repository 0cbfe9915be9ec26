import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { allow } from '../authentication/permissions.ts';
import type { Machine, Principal } from '../authentication/principal.ts';
import type { Database } from '../database/database.ts';
import { users } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { ApiError } from '../errors.ts';
import { repeatIfLost } from '../lost-object.ts';
import { machinePrincipal } from '../machines/authenticate-machine.ts';
import { machineRecord } from '../machines/machine-record.ts';
import type { EventClient } from '../projects/coordinator-rpc.ts';
import { readProject } from '../projects/project-access.ts';
import { streamsBucket } from '../rate-limits/buckets.ts';
import { readSettings } from '../settings.ts';
import { currentAccountRole } from '../tenancy/account-session.ts';

/** Concurrent event streams of all projects of a tenant. */
export const TENANT_STREAMS_MAX = 50;

const streamsOf = ({ RATE_LIMITER }: Env, { principal }: EventClient) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(streamsBucket(principal.tenantId)));

/**
 * Whether the client may read the project's events now, and has a place among the streams of its tenant. Called when a
 * stream opens and with each of its heartbeats.
 * @param openedAt result of the first call, null for that call
 * @returns the issue time of the newest token of the user
 */
export async function admitToStream(
  env: Env,
  db: Database,
  projectId: string,
  client: EventClient,
  openedAt: Date | null,
): Promise<Result<Date, Failure>> {
  const { userId, tenantId } = client.principal;
  const [[user], hasPlace] = await Promise.all([
    db.select().from(users).where(eq(users.id, userId)),
    repeatIfLost(() => streamsOf(env, client).hold(client.id, TENANT_STREAMS_MAX)),
  ]);
  if (!hasPlace) return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: TENANT_STREAMS_MAX } });
  if (user?.tenantId === tenantId) {
    const newerRole = openedAt && openedAt < user.tenantSeenAt ? user.role : null;
    const permission = await permissionOf(env, db, client.principal, newerRole);
    if (permission && (await readProject(db, permission, projectId, []))) return ok(user.tenantSeenAt);
  }
  leaveStreams(env, client);
  return fail({ code: 'NOT_FOUND' });
}

/** Frees the place. If the call fails, the place is free when its lease ends. */
export function leaveStreams(env: Env, client: EventClient): void {
  streamsOf(env, client)
    .release(client.id)
    .catch(() => {});
}

/** What the caller may read now; null if its session or machine is gone, or its role no longer allows it. */
async function permissionOf(env: Env, db: Database, caller: Principal, newerRole: string | null) {
  try {
    const principal = caller.machine
      ? await presentMachine(env, caller, caller.machine)
      : { ...caller, role: (await currentAccountRole(db, caller, new Date())) ?? newerRole ?? caller.role };
    return principal && { principal, reach: allow(principal, 'events.read'), isChange: false };
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}

async function presentMachine(env: Env, { expiresAt }: Principal, machine: Machine) {
  const record = await machineRecord(env.DB, machine, new Date());
  return record && machinePrincipal({ record, expiresAt }, readSettings(env));
}
