import { errors, importJWK, jwtVerify } from 'jose';
import type { PublicKey } from '../../shared/protocol/enrolment.ts';
import {
  ANSWER_LIFETIME,
  ANSWER_TYPE,
  AnswerClaims,
  type RefusalReason,
} from '../../shared/protocol/handshake.ts';
import type { Method } from '../../shared/protocol/operations.ts';
import { PREVIOUS_VERSION, PROTOCOL_VERSION } from '../../shared/protocol/version.ts';

/**
 * Tolerated clock difference of a host, in seconds. The nonce proves freshness; the times are a second check.
 */
const CLOCK_TOLERANCE = 300;

export interface Expected {
  hostId: string;
  /** Host and port of the URL that the agent connected to. */
  audience: string;
  nonce: string;
  publicKey: PublicKey;
}

export type HandshakeResult =
  | { ok: true; epoch: number; protocol: number }
  | { ok: false; reason: RefusalReason };

const ACCEPTED: readonly number[] = [PROTOCOL_VERSION, PREVIOUS_VERSION];

/** The refusal reason of each claim that jose can reject. */
const REASON_OF_CLAIM: Record<string, RefusalReason> = { aud: 'audience', iat: 'clock', exp: 'clock' };

/**
 * Verifies the `answer` to a challenge. The caller checks whether its epoch is new enough.
 * @param now Unix milliseconds
 */
export async function verifyHandshake(
  token: string,
  expected: Expected,
  now: number,
): Promise<HandshakeResult> {
  let claims: AnswerClaims;
  try {
    const verified = await jwtVerify(token, await importJWK(expected.publicKey, 'EdDSA'), {
      algorithms: ['EdDSA'],
      typ: ANSWER_TYPE,
      issuer: expected.hostId,
      audience: expected.audience,
      currentDate: new Date(now),
      maxTokenAge: ANSWER_LIFETIME,
      clockTolerance: CLOCK_TOLERANCE,
    });
    claims = AnswerClaims.parse(verified.payload);
  } catch (error) {
    return { ok: false, reason: refusalReason(error) };
  }
  if (claims.nonce !== expected.nonce) return { ok: false, reason: 'nonce' };
  if (!ACCEPTED.includes(claims.protocol)) return { ok: false, reason: 'protocol' };
  return { ok: true, epoch: claims.epoch, protocol: claims.protocol };
}

function refusalReason(error: unknown): RefusalReason {
  const isClaim = error instanceof errors.JWTClaimValidationFailed || error instanceof errors.JWTExpired;
  return (isClaim && REASON_OF_CLAIM[error.claim]) || 'signature';
}

const REMOVALS: readonly Method[] = ['branch.drop', 'branch.keep', 'project.drop', 'snapshot.drop'];

/** Returns whether a method takes away what a tenant may need. */
export const isRemoval = (method: Method): boolean => REMOVALS.includes(method);

/** Jobs that are remembered until they are read together. */
const REMEMBERED = 32;

const ADVICE =
  'The host has done work for a job that is not on record, so the records are older than its databases. Nothing on it is dropped ' +
  'until you restore later records or accept these. See docs/operating.md, "After restoring D1 from a backup".';

interface LineageOptions {
  /** Stored by the object: the newest job of the last check, and the jobs that the host has worked for since. */
  jobs: { get: () => string[]; put: (ids: string[]) => void };
  /** When each of these jobs was created that is on record. */
  recordedAmong: (jobIds: string[]) => Promise<Map<string, Date>>;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/**
 * Detects that D1 was put back to an older copy, by which a restored branch is still deleted and a renewed
 * lease has ended. A job is written before the host is called for it, and the newest of a host are never deleted
 * (docs/decisions/reconciliation.md), so one that is not on record is of a later time. A missing one is
 * remembered until the records are accepted: a new job proves nothing.
 */
export class RecordLineage {
  readonly #options: LineageOptions;

  constructor(options: LineageOptions) {
    this.#options = options;
  }

  /** To be called for every call of the host that is no removal. The records are read once for many jobs. */
  async remember(jobId: string): Promise<void> {
    const { jobs } = this.#options;
    const isRemembered = () => jobs.get().includes(jobId);
    if (isRemembered()) return;
    // While the records cannot be read, the list grows.
    const isFull = jobs.get().length >= REMEMBERED;
    if (isFull && !(await this.#areOnRecord([]).catch(() => true))) return;
    if (!isRemembered()) jobs.put([...jobs.get(), jobId]);
  }

  /**
   * To be called before every removal.
   * @param jobId null or a random one for a reconciliation
   * @returns false: it must not be sent
   */
  permitsRemoval(jobId: string | null): Promise<boolean> {
    return this.#areOnRecord(jobId === null ? [] : [jobId]);
  }

  /** @param also counts only if it is on record */
  async #areOnRecord(also: string[]): Promise<boolean> {
    const { jobs, recordedAmong, log } = this.#options;
    const remembered = jobs.get();
    if (remembered.length + also.length === 0) return true;
    const recorded = await recordedAmong([...remembered, ...also]);
    const missing = remembered.find((id) => !recorded.has(id));
    if (missing !== undefined) {
      log('host.records_went_back', { job_id: missing, advice: ADVICE });
      return false;
    }
    // A job can outlast later ones, and the newest is the first that an old copy lacks.
    const [newest] = [...recorded].toSorted(([, one], [, other]) => other.getTime() - one.getTime());
    // Another check may have ended, and other jobs may have come.
    const since = jobs.get().filter((id) => !remembered.includes(id));
    if (newest) jobs.put([newest[0], ...since]);
    return true;
  }
}
