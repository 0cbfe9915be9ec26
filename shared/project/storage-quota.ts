import { z } from 'zod';

/** In GiB (specification 8): quota of a new project, and the maximum that its users may set. */
export const DEFAULT_STORAGE_QUOTA_GIB = 0.25;
export const SELF_SERVICE_QUOTA_CAP_GIB = 5;

/** In order of usage (specification 3.2). */
export const STORAGE_STATES = ['normal', 'warning', 'write_blocked'] as const;
export type StorageState = (typeof STORAGE_STATES)[number];

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
 * The threshold of each state in percent of the quota. A state is entered at (`at`) or above its threshold, and left
 * only below it (specification 3.2).
 */
const THRESHOLDS = {
  normal: { percent: 0, at: true },
  warning: { percent: 80, at: false },
  write_blocked: { percent: 100, at: true },
} as const satisfies Record<StorageState, { percent: number; at: boolean }>;

/**
 * The storage state that follows from a measurement.
 * @param before the present state, which decides when usage is exactly at a threshold
 * @param used bytes
 * @param quota bytes
 */
export function evaluateStorage(before: StorageState, used: number, quota: number): StorageState {
  const rankBefore = STORAGE_STATES.indexOf(before);
  const isReached = (state: StorageState, rank: number) => {
    const { percent, at } = THRESHOLDS[state];
    const beyond = used * 100 - quota * percent;
    return beyond > 0 || (beyond === 0 && (at || rank <= rankBefore));
  };
  return STORAGE_STATES.findLast(isReached) ?? 'normal';
}
