import { z } from 'zod';

/** Spec section 8, in GiB: what a project starts with, and the most its users may choose by themselves. */
export const DEFAULT_STORAGE_QUOTA_GIB = 0.25;
export const SELF_SERVICE_QUOTA_CAP_GIB = 5;

/** Spec 3.2. */
export const STORAGE_STATES = ['normal', 'warning', 'write_blocked'] as const;
export type StorageState = (typeof STORAGE_STATES)[number];

/** A storage quota in GiB, shared by all branches of a project. */
export const StorageQuotaGib = z.number().positive().meta({ description: 'GiB', example: 0.5 });
