import type { Failure } from './failures.ts';

/**
 * The outcome of work that can fail in a known way. Plain data, because exceptions and classes do not survive
 * an RPC.
 */
export type Result<T, F = Failure> = { ok: true; value: T } | { ok: false; failure: F };

export const ok = <T>(value: T): { ok: true; value: T } => ({ ok: true, value });

export const fail = <F>(failure: F): { ok: false; failure: F } => ({ ok: false, failure });
