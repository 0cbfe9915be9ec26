import type { Failure } from './failures.ts';

/** The outcome of an operation that can be refused. */
export type Result<T, F = Failure> = { ok: true; value: T } | { ok: false; failure: F };

export const ok = <T>(value: T): { ok: true; value: T } => ({ ok: true, value });

export const failed = <F>(failure: F): { ok: false; failure: F } => ({ ok: false, failure });
