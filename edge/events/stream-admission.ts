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
 * Whether the client may read the project now, and has a place among the streams of its tenant. Called when a
 * stream opens and with each of its heartbeats.
 * @param openedAt result of the first call, null for that call
 * @returns the issue time of the newest token of the user
 */
export async function admitToStream(
  gate: StreamGate,
  projectId: string,
  client: StreamClient,
  openedAt: Date | null,
): Promise<Result<Date, Failure>> {
  const { db } = gate;
  const { userId, tenantId } = client.principal;
  const [[user], hasPlace] = await Promise.all([
    db.select().from(users).where(eq(users.id, userId)),
    repeatIfLost(() => streamsOf(gate, client).hold(client.id, TENANT_STREAMS_MAX)),
  ]);
  if (!hasPlace) return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: TENANT_STREAMS_MAX } });
  if (user?.tenantId === tenantId) {
    const newerRole = openedAt && openedAt < user.tenantSeenAt ? user.role : null;
    const permission = await permissionOf(gate, client.principal, newerRole);
    const project = permission && (await readProject(db, permission, projectId, []));
    if (project?.ok && project.value) return ok(user.tenantSeenAt);
  }
  leaveStreams(gate, client);
  return fail({ code: 'NOT_FOUND' });
}

/** Frees the place. If the call fails, the place is free when its lease ends. */
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
