import { eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { ACTOR_TYPES } from '../../shared/actor-types.ts';
import type { AUDIT_NAMES } from '../../shared/audit-names.ts';
import type { Actor, AuditActor, Machine } from '../database/column-types.ts';
import { type Database, isOneOf, type Statement } from '../database/database.ts';
import { auditEvents, projects } from '../database/schema.ts';

export const noActor = (tenantId: string): AuditActor => ({
  userId: null,
  email: null,
  tenantId,
  ip: null,
  userAgent: null,
  requestId: null,
});

/** The client of a request: its address, its `User-Agent` and the request's ID. */
export type ClientDetails = Pick<Actor, 'ip' | 'userAgent' | 'requestId' | 'traceparent'>;

/**
 * The actor of an audit row.
 * @param user with `userId` null while it is not proven that the client is this user
 */
export const actorWith = <Id extends string | null>(
  client: ClientDetails,
  { userId, email, tenantId, machine }: { userId: Id; email: string; tenantId: string; machine?: Machine },
) => ({
  userId,
  email,
  tenantId,
  ...(machine && { machine: { type: machine.type, id: machine.id } }),
  ...client,
});

/** The author of an audit event. */
function authorOf({ userId, email, machine }: AuditActor) {
  if (machine) return { actorType: machine.type, actorId: machine.id, actorEmail: null };
  return { actorType: userId === null ? null : ('user' as const), actorId: userId, actorEmail: email };
}

/**
 * The specification includes the service name in the sign-in event of a command line: `<service>.cli.login`.
 */
export type AuditName = (typeof AUDIT_NAMES)[number] | `${string}.cli.login`;

/** Characters of the JSON of an event's metadata: 50 changes of rows with ordinary names and keys. */
const METADATA_MAX = 8192;

function cut(value: unknown, length: number): unknown {
  if (typeof value === 'string') return value.slice(0, length);
  if (typeof value !== 'object' || value === null) return value;
  let left = length;
  const fits = (part: unknown) => {
    left -= JSON.stringify(part)?.length ?? 0;
    return left >= 0;
  };
  return Array.isArray(value) ? value.filter(fits) : Object.fromEntries(Object.entries(value).filter(fits));
}

const sizeOf = (value: unknown) =>
  typeof value === 'string' ? value.length : Object.keys(value as object).length;

/**
 * Cuts metadata, most of which has texts of a request, because all tenants share the space of D1. `shortened` says how many
 * entries or characters each cut value had. The record of a deleted branch stays whole: no other copy of it exists.
 */
export function boundedMetadata({ record, ...metadata }: Record<string, unknown>): Record<string, unknown> {
  const whole = record === undefined ? metadata : { ...metadata, record };
  if (JSON.stringify(metadata).length <= METADATA_MAX) return whole;
  const entries = Object.entries(metadata);
  const share = Math.floor(METADATA_MAX / entries.length);
  const isLong = ([, value]: [string, unknown]) => (JSON.stringify(value)?.length ?? 0) > share;
  const long = entries.filter(isLong);
  return {
    ...whole,
    ...Object.fromEntries(long.map(([name, value]) => [name, cut(value, share)])),
    shortened: Object.fromEntries(long.map(([name, value]) => [name, sizeOf(value)])),
  };
}

type AuditRow = typeof auditEvents.$inferInsert;

/**
 * The row of an audit event; it is written in the same batch as the action itself.
 * @param about `id` is fixed for events of a job, so that a repeated step does not duplicate them
 */
export function auditEvent(
  name: AuditName,
  actor: AuditActor,
  about: { id?: string; projectId?: string; branchId?: string; metadata?: Record<string, unknown> },
  now: Date,
): AuditRow {
  return {
    id: about.id ?? crypto.randomUUID(),
    name,
    ...authorOf(actor),
    tenantId: actor.tenantId,
    projectId: about.projectId ?? null,
    branchId: about.branchId ?? null,
    ip: actor.ip,
    userAgent: actor.userAgent,
    requestId: actor.requestId,
    metadata: boundedMetadata(about.metadata ?? {}),
    createdAt: now,
  };
}

/** The public form of an audit event. Actions of the service itself have no actor. */
export const AuditEvent = z
  .strictObject({
    id: z.uuid(),
    name: z.string().meta({ description: 'What was done.', example: 'branch.lifespan.changed' }),
    actor_type: z
      .enum(ACTOR_TYPES)
      .nullable()
      .meta({ description: 'Null for an action of the service itself.', example: 'user' }),
    actor_id: z.string().nullable().meta({
      description:
        'ID of the user, the API key, the trust of the workload or the grant of the client; null for an action of the service itself.',
      example: '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b',
    }),
    actor_email: z.string().nullable().meta({ example: 'ada@example.com' }),
    tenant_id: z.string().meta({ example: 'acme' }),
    project_id: z.uuid().nullable(),
    branch_id: z.uuid().nullable(),
    ip: z.string().nullable().meta({ description: 'Client address of the request.', example: '203.0.113.7' }),
    user_agent: z.string().nullable().meta({ example: 'curl/8.9.1' }),
    request_id: z.string().nullable().meta({
      description: '`X-Request-Id` of the request.',
      example: '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11',
    }),
    metadata: z
      .record(z.string(), z.unknown())
      .meta({ description: 'Details that depend on `name`.', example: { from: '7d', to: '1m' } }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'AuditEvent' });

export const toAuditEventResponse = (row: typeof auditEvents.$inferSelect): z.output<typeof AuditEvent> => ({
  id: row.id,
  name: row.name,
  actor_type: row.actorType,
  actor_id: row.actorId,
  actor_email: row.actorEmail,
  tenant_id: row.tenantId,
  project_id: row.projectId,
  branch_id: row.branchId,
  ip: row.ip,
  user_agent: row.userAgent,
  request_id: row.requestId,
  metadata: row.metadata,
  created_at: row.createdAt.toISOString(),
});

/**
 * Gives events of a job the tenant of their project (specification 5.9): the user may have moved to another
 * tenant since the job was created. It follows their insertion in the same batch.
 */
export const inTenantOfProject = (db: Database, projectId: string, eventIds: readonly string[]): Statement =>
  db
    .update(auditEvents)
    .set({
      tenantId: sql`${db.select({ tenantId: projects.tenantId }).from(projects).where(eq(projects.id, projectId))}`,
    })
    .where(isOneOf(auditEvents.id, eventIds));
