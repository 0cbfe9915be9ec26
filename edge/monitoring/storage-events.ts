import { inGib, quotaBytes, type StorageState } from '../../shared/project/storage-quota.ts';
import type { ProjectRow } from '../database/schema.ts';
import { type Mail, plainMail } from '../mail/mail.ts';

/** Specification 6. */
export interface StorageEvent {
  event: StorageEventName;
  project_id: string;
  storage_used_gib: number;
  storage_quota_gib: number;
  usage_percent: number;
  /** ISO 8601 UTC. */
  timestamp: string;
}

/** `DATABASES_CLOSED` is the gateway's own. */
export type StorageEventName = 'STORAGE_WARNING' | 'WRITE_BLOCKED' | 'DATABASES_CLOSED';

/** The events of each state, sent once an episode. A project over one threshold is over those below. */
export const EVENTS_OF_STATE: Record<StorageState, readonly StorageEventName[]> = {
  normal: [],
  warning: ['STORAGE_WARNING'],
  write_blocked: ['STORAGE_WARNING', 'WRITE_BLOCKED'],
  closed: ['STORAGE_WARNING', 'WRITE_BLOCKED', 'DATABASES_CLOSED'],
};

/** @param used bytes */
export const storageEvent = (
  event: StorageEventName,
  project: Pick<ProjectRow, 'id' | 'storageQuotaGib'>,
  used: number,
  now: Date,
): StorageEvent => ({
  event,
  project_id: project.id,
  storage_used_gib: inGib(used),
  storage_quota_gib: project.storageQuotaGib,
  usage_percent: Number(((100 * used) / quotaBytes(project.storageQuotaGib)).toFixed(2)),
  timestamp: now.toISOString(),
});

const MEANING: Record<StorageEventName, string> = {
  STORAGE_WARNING: 'At 100% the read-write and read-only logins can no longer write.',
  WRITE_BLOCKED:
    'The read-write and read-only logins can no longer write; the owner login can. Delete data or raise the quota to restore write access.',
  DATABASES_CLOSED:
    'No login can be used any more, not even that of the owner. Delete branches or raise the quota to open the databases again; the platform operator can raise the cap of the quota.',
};

/** The e-mail for the operators. The name of the project is text from a user. */
export function storageMail(event: StorageEvent, name: string, to: string): Mail {
  const { usage_percent, storage_used_gib, storage_quota_gib, project_id, timestamp } = event;
  const fact = `Project "${name}" uses ${usage_percent}% of its storage quota: ${storage_used_gib} of ${storage_quota_gib} GiB.`;
  return plainMail(to, `${event.event}: ${name} at ${usage_percent}%`, [
    fact,
    MEANING[event.event],
    `Project ${project_id}, measured at ${timestamp}.`,
  ]);
}
