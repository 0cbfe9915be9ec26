import { z } from 'zod';

/** In GiB (specification 8): quota of a new project, and the maximum that its users may set. */
export const DEFAULT_STORAGE_QUOTA_GIB = 0.25;
export const SELF_SERVICE_QUOTA_CAP_GIB = 5;

/** In order of usage (specification 3.2). */
export const STORAGE_STATES = ['normal', 'warning', 'write_blocked', 'closed'] as const;
export type StorageState = (typeof STORAGE_STATES)[number];

export const StorageStateField = z.enum(STORAGE_STATES).meta({
  description:
    '`write_blocked`: only owner logins can write. `closed`: no login can be used, because usage exceeds twice the quota.',
});

/**
 * What the logins of a project may do in each state. In `closed` none may be used, because a grant to PUBLIC
 * lets every login write in spite of the write block.
 */
export const ACCESS_OF_STATE = {
  normal: 'open',
  warning: 'open',
  write_blocked: 'write_blocked',
  closed: 'closed',
} as const satisfies Record<StorageState, 'open' | 'write_blocked' | 'closed'>;

/** Guards against mistakes: an empty database takes about 0.007 GiB. */
const SMALLEST_STORAGE_QUOTA_GIB = 0.001;

/** A storage quota in GiB, shared by all branches of a project. */
export const StorageQuotaGib = z
  .number()
  .min(SMALLEST_STORAGE_QUOTA_GIB)
  .meta({ description: 'Storage quota in GiB.', example: 0.5 });

const BYTES_OF_A_GIB = 2 ** 30;

/** A quota in whole bytes, at least one. */
export const quotaBytes = (gib: number): number => Math.ceil(gib * BYTES_OF_A_GIB);

/** Bytes in GiB, rounded to six decimals (about 1 kB). */
export const inGib = (bytes: number): number => Number((bytes / BYTES_OF_A_GIB).toFixed(6));

/**
 * The least that an owner may use above the quota: a few empty databases, which alone exceed a tiny quota.
 */
const LEAST_EXCESS_BYTES = 32 * 2 ** 20;

/** Usage above which no login may be used: twice the quota, or `LEAST_EXCESS_BYTES` above a small one. */
export const ceilingBytes = (quota: number): number => quota + Math.max(quota, LEAST_EXCESS_BYTES);

/**
 * How far usage is beyond the threshold of each state, in any unit. A state is entered above its threshold,
 * or at it (`at`), and left only below it (specification 3.2).
 */
const THRESHOLDS: Record<StorageState, { beyond: (used: number, quota: number) => number; at: boolean }> = {
  normal: { beyond: (used) => used, at: true },
  warning: { beyond: (used, quota) => used * 100 - quota * 80, at: false },
  write_blocked: { beyond: (used, quota) => used - quota, at: true },
  closed: { beyond: (used, quota) => used - ceilingBytes(quota), at: false },
};

/**
 * The storage state that follows from a measurement.
 * @param before the present state, which decides when usage is exactly at a threshold
 * @param used bytes
 * @param quota bytes
 */
export function evaluateStorage(before: StorageState, used: number, quota: number): StorageState {
  const rankBefore = STORAGE_STATES.indexOf(before);
  const isReached = (state: StorageState, rank: number) => {
    const { at, ...threshold } = THRESHOLDS[state];
    const beyond = threshold.beyond(used, quota);
    return beyond > 0 || (beyond === 0 && (at || rank <= rankBefore));
  };
  return STORAGE_STATES.findLast(isReached) ?? 'normal';
}
