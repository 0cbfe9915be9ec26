import type { AUDIT_NAMES } from '../../shared/audit-names.ts';
import type { auditEvents } from '../database/schema.ts';
import { type AuditActor, authorOf } from './actor.ts';

/** The specification includes the service name in the sign-in event of a command line: `<service>.cli.login`. */
export type AuditName = (typeof AUDIT_NAMES)[number] | `${string}.cli.login`;

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
    metadata: about.metadata ?? {},
    createdAt: now,
  };
}
