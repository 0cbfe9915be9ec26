import { z } from 'zod';
import { ACTOR_TYPES } from '../../shared/actor-types.ts';
import type { auditEvents } from '../database/schema.ts';

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
        'ID of the user, the API key or the trust of the workload; null for an action of the service itself.',
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
