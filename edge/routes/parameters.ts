import { z } from 'zod';
import { STREAM_SECONDS_MAX } from '../events/open-streams.ts';

/** Path parameters. A malformed UUID is reported as 404, like an unknown one. */
const Id = z.uuid().toLowerCase();

export const ProjectParams = z.strictObject({ project_id: Id });
export const BranchRefParams = z.strictObject({
  project_id: Id,
  // Specification 4.3.
  branch_ref: z.string().meta({ description: 'The id or the name of the branch.' }),
});
export const SnapshotParams = z.strictObject({ project_id: Id, snapshot_id: Id });
export const DeletedBranchParams = z.strictObject({ project_id: Id, deleted_branch_id: Id });
export const TableParams = BranchRefParams.extend({
  table: z.string().meta({ description: 'The name of the table, without its schema.' }),
});
export const ProjectMemberParams = z.strictObject({ project_id: Id, user_id: Id });
export const MemberParams = z.strictObject({ user_id: Id });
export const InvitationParams = z.strictObject({ invitation_id: Id });
export const SessionParams = z.strictObject({ session_id: Id });
export const RuleParams = z.strictObject({ project_id: Id, rule_id: Id });
export const TrustParams = z.strictObject({ project_id: Id, trust_id: Id });
export const ApiKeyParams = z.strictObject({
  key_id: z.string().meta({ description: 'The part of the key between `bg_` and the next `_`.' }),
});
export const WebhookParams = z.strictObject({ webhook_id: Id });
export const JobParams = z.strictObject({ job_id: Id });
export const TenantParams = z.strictObject({
  tenant_id: z.string().meta({ description: 'As in the tokens of its users.', example: 'acme' }),
});
export const HostParams = z.strictObject({ host_id: Id });

/** Query of every stream of server-sent events. */
export const StreamQuery = z.strictObject({
  seconds: z.coerce.number().int().min(0).max(STREAM_SECONDS_MAX).default(STREAM_SECONDS_MAX).meta({
    description:
      'Duration of the stream in seconds. Clients of server-sent events reconnect automatically when it ends.',
  }),
});

/** In a query or a body: what a protected branch requires. */
export const Confirm = z.string().max(100).optional().meta({
  description: 'The name of the branch; required if it is protected.',
});
