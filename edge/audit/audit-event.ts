import type { auditEvents } from '../database/schema.ts';
import { type AuditActor, authorOf } from './actor.ts';

/** Names of audit events: those of specification 6, and the gateway's own. */
export const AUDIT_NAMES = [
  'branch.created',
  'branch.deleted',
  'branch.lost',
  'branch.found',
  'branch.expired',
  'branch.blocked',
  'branch.unblocked',
  'branch.credentials.rotated',
  'branch.lifespan.changed',
  'branch.credentials.viewed',
  'project.created',
  'project.renamed',
  'project.quota.changed',
  'project.caps.changed',
  'tenant.caps.changed',
  'project.storage_state.changed',
  'access.denied',
  'project.deleted',
  'network_rule.created',
  'network_rule.deleted',
  'row.changed',
  'row.deleted',
  'rows.changed',
  'query.executed',
  'webhook.created',
  'webhook.deleted',
  'webhook.disabled',
  'account.created',
  'account.password.changed',
  'account.password.reset',
  'invitation.created',
  'invitation.revoked',
  'invitation.accepted',
  'member.role.changed',
  'member.removed',
  'project.shared',
  'project.unshared',
  'sign_in.succeeded',
  'sign_in.failed',
  'second_factor.enrolled',
  'second_factor.removed',
  'recovery_codes.replaced',
  'session.ended',
  'session.stolen',
  'api_key.created',
  'api_key.deleted',
  'trust.created',
  'trust.deleted',
  'trust.token_issued',
] as const;
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
