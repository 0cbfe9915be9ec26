import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { allow, type Reach } from '../authentication/permissions.ts';
import type { Database } from '../database/database.ts';
import { users } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { ApiError } from '../errors.ts';
import type { EventClient } from '../projects/coordinator-rpc.ts';
import { readProject } from '../projects/project-access.ts';
import { streamsBucket } from '../rate-limits/buckets.ts';

/** Concurrent event streams of all projects of a tenant. */
export const TENANT_STREAMS_MAX = 50;

const streamsOf = ({ RATE_LIMITER }: Env, { principal }: EventClient) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(streamsBucket(principal.tenantId)));

/**
 * Whether the client may read the project's events now, and has a place among the streams of its tenant. Called when a
 * stream opens and with each of its heartbeats. The token has the role; a token that the user got after the stream was
 * opened replaces it.
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
  const { principal } = client;
  const everywhere = { principal, reach: 'all' } as const;
  const [read, hasPlace] = await Promise.all([
    readProject(db, everywhere, projectId, [db.select().from(users).where(eq(users.id, principal.userId))]),
    streamsOf(env, client).hold(client.id, TENANT_STREAMS_MAX),
  ]);
  if (!hasPlace) return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: TENANT_STREAMS_MAX } });
  const user = read?.[1][0];
  if (read && user?.tenantId === principal.tenantId) {
    const reach = reachOf(client, openedAt && openedAt < user.tenantSeenAt ? user.role : principal.role);
    const isOwn = read[0].createdBy === principal.userId;
    if (reach === 'all' || (reach === 'own' && isOwn)) return ok(user.tenantSeenAt);
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

function reachOf({ principal }: EventClient, role: string): Reach | null {
  try {
    return allow({ ...principal, role }, 'events.read');
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}
