import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Machine } from '../database/column-types.ts';
import type { Database, DatabaseBinding } from '../database/database.ts';
import { users } from '../database/schema.ts';
import { repeatIfLost } from '../lost-object.ts';
import { machinePrincipal, machineRecord } from '../machines/authenticate-machine.ts';
import { allow } from '../permissions.ts';
import { streamsBucket } from '../rate-limits/buckets.ts';
import type { Limiters } from '../rate-limits/limiter-client.ts';
import { readSettings } from '../settings.ts';
import { readProject } from '../tenancy/project-access.ts';
import { currentAccountRole } from '../tenancy/users.ts';

/** Concurrent streams of events of all projects of a tenant, and as many of measurements. */
export const TENANT_STREAMS_MAX = 50;

/** A client that wants a stream of a project. */
export interface StreamClient {
  id: string;
  principal: Principal;
}

/** What streams are admitted with. */
export interface StreamGate {
  env: DatabaseBinding & Limiters;
  db: Database;
  /** What a client of these streams has to be allowed. */
  action: 'events.read' | 'metrics.read';
}

const streamsOf = ({ env: { RATE_LIMITER }, action }: StreamGate, { principal }: StreamClient) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(streamsBucket(principal.tenantId, action)));

/**
 * Takes a place among the streams of the client's tenant. The route has checked its access.
 * @returns or STREAM_LIMIT_REACHED
 */
export async function takePlace(gate: StreamGate, client: StreamClient): Promise<Result<null, Failure>> {
  if (await repeatIfLost(() => streamsOf(gate, client).hold(client.id, TENANT_STREAMS_MAX))) return ok(null);
  return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: TENANT_STREAMS_MAX } });
}

/** Whether the client still has its place and may read the project. Called with each heartbeat. */
export async function mayGoOn(gate: StreamGate, projectId: string, client: StreamClient): Promise<boolean> {
  const { db } = gate;
  const { userId, tenantId, issuedAt } = client.principal;
  const [[user], place] = await Promise.all([
    db.select().from(users).where(eq(users.id, userId)),
    takePlace(gate, client),
  ]);
  if (!place.ok || user?.tenantId !== tenantId) return false;
  const newerRole = issuedAt < user.tenantSeenAt ? user.role : null;
  const permission = await permissionOf(gate, client.principal, newerRole);
  const project = permission && (await readProject(db, permission, projectId, []));
  return project?.ok === true && project.value !== null;
}

/** Frees the place. If the call fails, the place is free when it is not renewed. */
export function leaveStreams(gate: StreamGate, client: StreamClient): void {
  streamsOf(gate, client)
    .release(client.id)
    .catch(() => {});
}

/** What the caller may read now; null if its session or machine is gone, or its role no longer allows it. */
async function permissionOf({ env, db, action }: StreamGate, caller: Principal, newerRole: string | null) {
  const principal = caller.machine
    ? await presentMachine(env, caller, caller.machine)
    : await presentUser(db, caller, newerRole);
  if (!principal) return null;
  const reach = allow(principal, action);
  return reach.ok ? { principal, reach: reach.value, isChange: false } : null;
}

async function presentUser(
  db: Database,
  caller: Principal,
  newerRole: string | null,
): Promise<Principal | null> {
  const role = await currentAccountRole(db, caller, new Date());
  return role.ok ? { ...caller, role: role.value ?? newerRole ?? caller.role } : null;
}

async function presentMachine(env: DatabaseBinding & Limiters, { expiresAt }: Principal, machine: Machine) {
  const record = await machineRecord(env.DB, machine, new Date());
  return record && machinePrincipal({ record, expiresAt }, readSettings(env));
}
