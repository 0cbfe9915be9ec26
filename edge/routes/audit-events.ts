import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { ACTOR_TYPES } from '../../shared/actor-types.ts';
import { AUDIT_NAMES } from '../../shared/audit-names.ts';
import { AuditEvent, toAuditEventResponse } from '../audit/audit-event.ts';
import { auditEvents } from '../database/schema.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';

const ACTOR_ID_MAX = 100;

const AuditQuery = PageQuery.extend({
  project_id: z.uuid().toLowerCase().optional().meta({ description: 'Only events of this project.' }),
  name: z
    .union([z.enum(AUDIT_NAMES), z.string().regex(/^[a-z][a-z0-9_-]*\.cli\.login$/)])
    .optional()
    .meta({ description: 'Only events of this name.' }),
  actor_type: z
    .enum(ACTOR_TYPES)
    .optional()
    .meta({ description: 'Only events whose author is of this type.' }),
  actor_id: z
    .string()
    .min(1)
    .max(ACTOR_ID_MAX)
    .optional()
    .meta({ description: 'Only events of this user, API key, trust or grant.' }),
});

export const auditRoutes = operations().openapi(
  operation({
    access: 'audit.read',
    operationId: 'listAuditEvents',
    method: 'get',
    path: '/api/v1/audit-events',
    summary: "List the tenant's audit events, newest first",
    tags: ['Audit'],
    request: { query: AuditQuery },
    responses: { 200: response('A page of audit events.', pageOf('audit_events', AuditEvent)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { tenantId, machine } = c.var.principal;
    const { orderBy, beyond } = keyset(auditEvents, 'newest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(auditEvents)
      .where(
        and(
          eq(auditEvents.tenantId, tenantId),
          query.project_id ? eq(auditEvents.projectId, query.project_id) : undefined,
          machine?.projectId ? eq(auditEvents.projectId, machine.projectId) : undefined,
          query.name ? eq(auditEvents.name, query.name) : undefined,
          query.actor_type ? eq(auditEvents.actorType, query.actor_type) : undefined,
          query.actor_id ? eq(auditEvents.actorId, query.actor_id) : undefined,
          beyond,
        ),
      )
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ audit_events: page.map(toAuditEventResponse), next_cursor }, 200);
  },
);
