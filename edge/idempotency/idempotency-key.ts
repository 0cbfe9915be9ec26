import { and, eq, gt, lte, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import { sha256 } from '../crypto/encoding.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { type GuardedWrite, guardedWrite, type Identified } from '../database/guarded-write.ts';
import { idempotencyKeys } from '../database/schema.ts';

/** How long the response to a request with an `Idempotency-Key` is stored. */
const STORED_MS = 24 * 3_600_000;

/** Visible ASCII, as draft-ietf-httpapi-idempotency-key-header requires; long enough for any UUID or hash. */
const Key = z
  .string()
  .regex(/^[\x21-\x7e]{1,255}$/, 'must be 1 to 255 visible ASCII characters')
  .meta({
    description:
      'A repeated request with the same key within 24 hours gets the first response and creates nothing.',
    example: '6f0d9f7e-6c1b-4d0a-8b0c-0d3f0c9f4e11',
  });

export const IdempotencyHeader = z.object({ 'idempotency-key': Key.optional() });

/** The failures that a key can cause. */
export const KEY_FAILURES = ['IDEMPOTENCY_KEY_REUSED', 'IDEMPOTENCY_IN_FLIGHT'] as const;

/** The `userId` of the operator of the platform, who is no user. */
export const OPERATOR = 'operator';

/** One use of an `Idempotency-Key`, identified by tenant, caller and full path. */
export interface KeyUse {
  tenantId: string;
  /** ID of the user or of the machine, which must not see the responses of the user in whose name it acts. */
  userId: string;
  path: string;
  key: string;
  /** SHA-256 of the validated body, hexadecimal. */
  bodyHash: string;
}

/** The response to a key's first request. */
export interface StoredResponse {
  status: number;
  body: Record<string, unknown>;
}

/**
 * Stores the key if `condition` is true, and deletes expired keys. The statements join the batch that records
 * the subject of the request, so a key is used up exactly if the request has an effect.
 * @param subjectId the job that will have the response, or what was made
 * @param response if it is already known; otherwise the end of the job stores it
 */
const insertKey = (
  db: Database,
  use: KeyUse | null,
  subjectId: string,
  condition: SQL,
  now: Date,
  response?: StoredResponse,
): Statement[] =>
  use === null
    ? []
    : [
        db.delete(idempotencyKeys).where(lte(idempotencyKeys.expiresAt, now)),
        insertIf(
          db,
          idempotencyKeys,
          { ...use, ...response, jobId: subjectId, expiresAt: new Date(now.getTime() + STORED_MS) },
          condition,
        ),
      ];

/** Stores the response for repeated requests with the key of `subjectId`. */
export const storeResponse = (db: Database, subjectId: string, response: StoredResponse) =>
  db.update(idempotencyKeys).set(response).where(eq(idempotencyKeys.jobId, subjectId));

/** The use that a request makes of `key`; null without a key. @param body validated */
export const keyUseOf = async (
  { tenantId, userId, machine }: Pick<Principal, 'tenantId' | 'userId' | 'machine'>,
  path: string,
  key: string | undefined,
  body: unknown,
): Promise<KeyUse | null> =>
  key === undefined
    ? null
    : { tenantId, userId: machine?.id ?? userId, path, key, bodyHash: await sha256(JSON.stringify(body)) };

/** The recorded uses of the key. The query can join the batch of whatever else a request reads. */
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
 * The response to the key's first request; null if this is the first.
 * @returns or IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_FLIGHT
 */
export function recordedResponse(
  [recorded]: readonly (typeof idempotencyKeys.$inferSelect)[],
  use: KeyUse | null,
): Result<StoredResponse | null, Failure> {
  if (!recorded) return ok(null);
  const { bodyHash, status, body, jobId } = recorded;
  if (bodyHash !== use?.bodyHash) return fail({ code: 'IDEMPOTENCY_KEY_REUSED' });
  if (status === null) return fail({ code: 'IDEMPOTENCY_IN_FLIGHT', fields: { job_id: jobId } });
  return ok({ status, body: body ?? {} });
}

/**
 * The outcome of a reservation for its client. A limit may be reached, or a name taken, by another request
 * with the same key that runs concurrently: this one is then no refusal, and its repetition gets the response
 * of the other.
 */
export async function unlessInFlight<T>(
  db: Database,
  use: KeyUse | null,
  outcome: Result<T, Failure>,
): Promise<Result<T, Failure>> {
  if (outcome.ok || use === null) return outcome;
  const recorded = recordedResponse(await recordedUses(db, use, new Date()), use);
  if (!recorded.ok) return recorded;
  return recorded.value === null ? outcome : fail({ code: 'IDEMPOTENCY_IN_FLIGHT' });
}

/**
 * As `guardedWrite`, under an `Idempotency-Key`.
 * @param key with the subject and the response as `insertKey` takes them
 * @returns or IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_FLIGHT if a concurrent request with the same key was
 *   first
 */
export async function writeUnderKey<T extends Identified, R = never>(
  db: Database,
  key: { use: KeyUse | null; subjectId: string; now: Date; response?: StoredResponse },
  write: GuardedWrite<T, R>,
): Promise<Result<R[], Failure>> {
  const { use, subjectId, now, response } = key;
  const written = await guardedWrite(db, {
    ...write,
    rest: (isWritten) => [
      ...insertKey(db, use, subjectId, isWritten, now, response),
      ...(write.rest?.(isWritten) ?? []),
    ],
    conflicts: { ...write.conflicts, idempotency_keys: 'IDEMPOTENCY_IN_FLIGHT' },
  });
  return unlessInFlight(db, use, written);
}

/** State of a creation when its client stops waiting; `response` is null while the job is running. */
export type CreationProgress = { response: StoredResponse } | { response: null; jobId: string };
