import { z } from 'zod';

/** Spec section 8, in GiB: what a project starts with, and the most its users may choose by themselves. */
export const DEFAULT_STORAGE_QUOTA_GIB = 0.25;
export const SELF_SERVICE_QUOTA_CAP_GIB = 5;

/** Spec 3.2, from the least used to the most. */
export const STORAGE_STATES = ['normal', 'warning', 'write_blocked'] as const;
export type StorageState = (typeof STORAGE_STATES)[number];

/** Less is a mistake: an empty database takes about 0.007. */
const SMALLEST_STORAGE_QUOTA_GIB = 0.001;

/** A storage quota in GiB, shared by all branches of a project. */
export const StorageQuotaGib = z
  .number()
  .min(SMALLEST_STORAGE_QUOTA_GIB)
  .meta({ description: 'GiB', example: 0.5 });

const BYTES_OF_A_GIB = 2 ** 30;

/** A quota in whole bytes; even the smallest is one. */
export const quotaBytes = (gib: number): number => Math.ceil(gib * BYTES_OF_A_GIB);

/** Bytes as GiB, to the kilobyte. */
export const inGib = (bytes: number): number => Number((bytes / BYTES_OF_A_GIB).toFixed(6));

/** Where each state begins, in percent of the quota: there, or only above. Below, it is left (spec 3.2). */
const BEGINS = {
  normal: { percent: 0, at: true },
  warning: { percent: 80, at: false },
  write_blocked: { percent: 100, at: true },
} as const satisfies Record<StorageState, { percent: number; at: boolean }>;

/**
 * The storage state that follows from a measurement.
 * @param before decides where usage is exactly at a threshold: a state is left only below it
 * @param used bytes
 * @param quota bytes
 */
export function evaluateStorage(before: StorageState, used: number, quota: number): StorageState {
  const held = STORAGE_STATES.indexOf(before);
  const holds = (state: StorageState, rank: number) => {
    const { percent, at } = BEGINS[state];
    const beyond = used * 100 - quota * percent;
    return beyond > 0 || (beyond === 0 && (at || rank <= held));
  };
  return STORAGE_STATES.findLast(holds) ?? 'normal';
}
