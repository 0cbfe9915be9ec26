import { z } from 'zod';
import type { JobError } from '../../shared/project/job.ts';
import { PROJECT_STATUSES } from '../../shared/project/project-status.ts';
import { STORAGE_STATES } from '../../shared/project/storage-quota.ts';
import { Branch, blockedOf, closedTo, connectionsBlockedUntil } from '../branches/branch.ts';
import { Snapshot } from '../branches/snapshot.ts';
import {
  CHANGE_STATES,
  EVENT_TYPES,
  type EventType,
  FOLLOW_RECORD_STATES,
  type StoredBlock,
} from '../database/column-types.ts';
import type { BranchRow } from '../database/schema.ts';
import { Job, toErrorResponse } from '../jobs/job-resource.ts';
import { FOLLOW_FIELDS } from '../sources/record.ts';

interface Definition {
  /** When the event occurs, for the API description. */
  meaning: string;
  /** `data` of the event. */
  data: z.ZodType;
  /** Makes `data` of what the trigger stored at that time; without it they are the same. */
  render?: (stored: never, at: Date) => unknown;
}

const Id = z.uuid();
const job = Job.shape;
const branch = Branch.shape;
const snapshot = Snapshot.shape;

/** The row that the trigger stores. Columns of timestamps are Unix milliseconds. */
interface StoredBranch {
  expires_at: number | null;
  /** Left out before it existed. */
  hold?: BranchRow['hold'];
  blocks: StoredBlock[];
}

/**
 * Every type of event. A new one needs a row here and a trigger that writes it (a migration of D1), which
 * `test/edge/events/triggers.worker.test.ts` compares. The fields are those of the API's records: a trigger
 * sees every column, so each of them is named, and none that the API does not show.
 */
const DEFINITIONS = {
  'project.changed': {
    meaning: 'The status of the project changed. The last event of a project has the status `deleted`.',
    data: z.strictObject({ status: z.enum([...PROJECT_STATUSES, 'deleted']) }),
  },
  'branch.changed': {
    meaning:
      'A branch was created, or its name, status, expiry, labels or blocks changed. A branch whose creation was refused becomes `deleted`.',
    data: z.strictObject({
      branch_id: Id,
      branch_name: branch.branch_name,
      status: branch.status,
      expires_at: branch.expires_at,
      labels: branch.labels,
      blocked: branch.blocked,
      connections_blocked_until: branch.connections_blocked_until,
      closed_to: branch.closed_to,
    }),
    render: ({ expires_at, hold = null, blocks, ...rest }: StoredBranch, at: Date) => ({
      ...rest,
      expires_at: expires_at === null ? null : new Date(expires_at).toISOString(),
      blocked: blockedOf(blocks, hold, at.getTime()),
      connections_blocked_until: connectionsBlockedUntil(blocks, at.getTime()),
      closed_to: closedTo(blocks, at.getTime()),
    }),
  },
  'network_rule.changed': {
    meaning: 'A network rule was created (`pending`), took effect on both ports (`applied`) or was deleted.',
    data: z.strictObject({
      network_rule_id: Id,
      branch_id: Id.nullable(),
      cidr: z.string(),
      status: z.enum(['pending', 'applied', 'deleted']),
    }),
  },
  'snapshot.changed': {
    meaning:
      'A snapshot was taken (`ready`), became independent of its branch or was deleted: by a user, at its end, for a newer one, or because the host has lost it.',
    data: z.strictObject({
      snapshot_id: Id,
      branch_id: Id,
      name: snapshot.name,
      kind: snapshot.kind,
      status: z.enum(['ready', 'deleted']),
      independent: snapshot.independent,
    }),
  },
  'job.changed': {
    meaning: 'A job was created, or its status, its steps or its number of failed attempts changed.',
    data: z.strictObject({
      job_id: Id,
      branch_id: job.branch_id,
      kind: job.kind,
      status: job.status,
      steps: job.steps,
      error: job.error,
      attempts: job.attempts,
    }),
    render: ({ error, ...rest }: { error: JobError | null }) => ({
      ...rest,
      error: error && toErrorResponse(error),
    }),
  },
  'storage.changed': {
    meaning: 'The storage use of the project crossed 80% or 100% of its quota.',
    data: z.strictObject({ state: z.enum(STORAGE_STATES), used_bytes: z.int().min(0) }),
  },
  'follow.changed': {
    meaning:
      'What `main` follows, its state or its problem changed. `deleted`: it was stopped, or cancelled.',
    data: z.strictObject({
      branch_id: Id,
      ...FOLLOW_FIELDS,
      state: z.enum([...FOLLOW_RECORD_STATES, 'deleted']),
    }),
  },
  'change.changed': {
    meaning: 'A change of `main` was planned, or its state changed, or a step of it was applied.',
    data: z.strictObject({
      change_id: Id,
      state: z.enum(CHANGE_STATES),
      steps_applied: z.int().min(0),
      job_id: Id.nullable(),
    }),
  },
  'project.failed_over': {
    meaning:
      'The database host of the project was lost, and its standby has taken its place. Everything that was committed until `survived_until` is there; what was committed after it may be missing.',
    data: z.strictObject({
      survived_until: z.iso.datetime().nullable().meta({ description: 'Null: not known.' }),
    }),
    render: ({ survived_until }: { survived_until: number | null }) => ({
      survived_until: survived_until === null ? null : new Date(survived_until).toISOString(),
    }),
  },
} as const satisfies Record<EventType, Definition>;

const eventSchema = (type: EventType) =>
  z.strictObject({
    id: Id,
    type: z.literal(type),
    timestamp: z.iso.datetime(),
    project_id: Id,
    data: DEFINITIONS[type].data as z.ZodType<Record<string, unknown>>,
  });

/** An event as streams and webhooks send it. */
export const Event = z
  .discriminatedUnion('type', EVENT_TYPES.map(eventSchema) as [ReturnType<typeof eventSchema>])
  .meta({ id: 'Event' });

export type EventBody = z.output<typeof Event>;

/** For the description of the API: one line per type. */
export const EVENT_MEANINGS = EVENT_TYPES.map((type) => `\`${type}\`: ${DEFINITIONS[type].meaning}`).join(
  ' ',
);

/** @param row of the outbox */
export function toEvent(row: {
  id: string;
  type: EventType;
  projectId: string;
  data: Record<string, unknown>;
  createdAt: Date;
}): EventBody {
  const { render }: Definition = DEFINITIONS[row.type];
  return {
    id: row.id,
    type: row.type,
    timestamp: row.createdAt.toISOString(),
    project_id: row.projectId,
    data: (render?.(row.data as never, row.createdAt) ?? row.data) as Record<string, unknown>,
  };
}
