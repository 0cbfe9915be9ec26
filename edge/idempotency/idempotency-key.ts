import { and, eq, gt, lte, type SQL, sql } from 'drizzle-orm';
import type { Context } from 'hono';
import type { Principal } from '../authentication/principal.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { idempotencyKeys } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { sha256 } from '../sha256.ts';

/** How long the answer to a request with an `Idempotency-Key` is kept. */
const KEPT_MS = 24 * 3_600_000;

/** Visible ASCII, as the header's draft wants of a key; long enough for any UUID or hash. */
const KEY_FORM = /^[\x21-\x7e]{1,255}$/;

/** One use of an `Idempotency-Key`: known per tenant, user and full path. */
export interface KeyUse {
  tenantId: string;
  userId: string;
  path: string;
  key: string;
  /** SHA-256 of the validated body, hexadecimal. */
  bodyHash: string;
}

/**
 * Keeps the key for its job, when `condition` holds, and forgets those that are too old. It joins the batch
 * that reserves what the job makes, so that a key is taken exactly when something comes of it.
 */
export const keepKey = (
  db: Database,
  use: KeyUse | null,
  jobId: string,
  condition: SQL,
  now: Date,
): Statement[] =>
  use === null
    ? []
    : [
        db.delete(idempotencyKeys).where(lte(idempotencyKeys.expiresAt, now)),
        insertIf(
          db,
          idempotencyKeys,
          { ...use, jobId, expiresAt: new Date(now.getTime() + KEPT_MS) },
          condition,
        ),
      ];

/** The request's key, or null when it has none. @throws ApiError VALIDATION_FAILED */
export async function readKeyUse(
  context: Context,
  principal: Principal,
  body: unknown,
): Promise<KeyUse | null> {
  const key = context.req.header('idempotency-key');
  if (key === undefined) return null;
  if (!KEY_FORM.test(key)) {
    const message = 'must be 1 to 255 visible ASCII characters';
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'Idempotency-Key', message }] });
  }
  const bodyHash = await sha256(JSON.stringify(body));
  return { tenantId: principal.tenantId, userId: principal.userId, path: context.req.path, key, bodyHash };
}

/** What is on record of the key; reads side by side with whatever else a request reads. */
export const recordedUses = (db: Database, use: KeyUse | null, now: Date) =>
  db
    .select()
    .from(idempotencyKeys)
    .where(
      use === null
        ? sql`false`
        : and(
            eq(idempotencyKeys.tenantId, use.tenantId),
            eq(idempotencyKeys.userId, use.userId),
            eq(idempotencyKeys.path, use.path),
            eq(idempotencyKeys.key, use.key),
            gt(idempotencyKeys.expiresAt, now),
          ),
    );

/**
 * The answer the key's first request got, to be given again; null when this is the first.
 * @throws ApiError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_FLIGHT
 */
export function replay(
  [recorded]: (typeof idempotencyKeys.$inferSelect)[],
  use: KeyUse | null,
): Response | null {
  if (!recorded) return null;
  if (recorded.bodyHash !== use?.bodyHash) throw new ApiError('IDEMPOTENCY_KEY_REUSED');
  if (recorded.status === null) throw new ApiError('IDEMPOTENCY_IN_FLIGHT', { job_id: recorded.jobId });
  return Response.json(recorded.body, {
    status: recorded.status,
    headers: { 'Idempotency-Replayed': 'true' },
  });
}
