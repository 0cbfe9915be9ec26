import { and, eq, gt, lte, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { AppContext } from '../app-env.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { idempotencyKeys } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { sha256 } from '../sha256.ts';

/** How long the answer to a request with an `Idempotency-Key` is kept. */
const KEPT_MS = 24 * 3_600_000;

/** Visible ASCII, as the header's draft wants of a key; long enough for any UUID or hash. */
const Key = z
  .string()
  .regex(/^[\x21-\x7e]{1,255}$/, 'must be 1 to 255 visible ASCII characters')
  .meta({
    description: 'The same key within 24 hours gets the first answer again and makes nothing twice.',
    example: '6f0d9f7e-6c1b-4d0a-8b0c-0d3f0c9f4e11',
  });

export const IdempotencyHeader = z.object({ 'idempotency-key': Key.optional() });

/** What can go wrong with a key. */
export const KEY_FAILURES = ['IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_IN_FLIGHT'] as const;

/** One use of an `Idempotency-Key`: known per tenant, user and full path. */
export interface KeyUse {
  tenantId: string;
  userId: string;
  path: string;
  key: string;
  /** SHA-256 of the validated body, hexadecimal. */
  bodyHash: string;
}

/** The answer a key's first request got. */
interface Answer {
  status: number;
  body: Record<string, unknown>;
}

/**
 * Keeps the key, when `condition` holds, and forgets those that are too old. It joins the batch that records
 * what the request makes, so that a key is taken exactly when something comes of it.
 * @param subjectId the job that will have the answer, or what was made
 * @param answer when it is known already; else the end of the job brings it
 */
export const insertKey = (
  db: Database,
  use: KeyUse | null,
  subjectId: string,
  condition: SQL,
  now: Date,
  answer?: Answer,
): Statement[] =>
  use === null
    ? []
    : [
        db.delete(idempotencyKeys).where(lte(idempotencyKeys.expiresAt, now)),
        insertIf(
          db,
          idempotencyKeys,
          { ...use, ...answer, jobId: subjectId, expiresAt: new Date(now.getTime() + KEPT_MS) },
          condition,
        ),
      ];

/** Keeps the answer for whoever comes again with the key that `subjectId` was made under. */
export const storeResponse = (db: Database, subjectId: string, answer: Answer) =>
  db.update(idempotencyKeys).set(answer).where(eq(idempotencyKeys.jobId, subjectId));

/** The use this request makes of `key`; null when it has none. */
export async function keyUseOf(
  c: AppContext,
  key: string | undefined,
  body: unknown,
): Promise<KeyUse | null> {
  if (key === undefined) return null;
  const { tenantId, userId } = c.var.principal;
  return { tenantId, userId, path: c.req.path, key, bodyHash: await sha256(JSON.stringify(body)) };
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
export function replay<Made>(
  c: AppContext,
  [recorded]: readonly (typeof idempotencyKeys.$inferSelect)[],
  use: KeyUse | null,
) {
  if (!recorded) return null;
  if (recorded.bodyHash !== use?.bodyHash) throw new ApiError('IDEMPOTENCY_KEY_REUSED');
  if (recorded.status === null) throw new ApiError('IDEMPOTENCY_IN_FLIGHT', { job_id: recorded.jobId });
  c.header('Idempotency-Replayed', 'true');
  return c.json(recorded.body as Made, 201);
}
