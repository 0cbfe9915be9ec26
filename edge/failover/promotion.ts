import { and, eq, inArray, isNull, lt, or, type SQL, type SQLWrapper, sql } from 'drizzle-orm';
import type { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { MemberState, StandbyReply } from '../../shared/protocol/standby.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Coordinators } from '../coordinator/coordinator-rpc.ts';
import { isMove, isOpenJob } from '../database/conditions.ts';
import {
  type Database,
  type DatabaseBinding,
  isThere,
  openDatabase,
  type Statement,
} from '../database/database.ts';
import { moves } from '../database/move-schema.ts';
import { hosts, jobs, projects } from '../database/schema.ts';
import { isMoving } from '../hosts/host.ts';
import { HostCallError, type HostLinks, hostCaller, hostLink, isLinked } from '../hosts/host-client.ts';
import { followsHost, type HostRow, readMember, readState, recordSync } from '../hosts/pair.ts';
import { jobError, SourceUnsuitableError } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { notifyTenants } from './notice.ts';
import { transition } from './states.ts';

/** Changes the records of a host and its standby, and sends them to their agents. */

type Env = DatabaseBinding & HostLinks & Coordinators;

/**
 * Lets a standby copy its primary: the primary makes its login, and from then on asks for its role before its servers start. Also
 * a former primary becomes a standby by it.
 * @param verifier of the password that the standby made
 * @returns or HOST_NOT_STANDBY, HOST_HAS_STANDBY, HOST_UNAVAILABLE, HOST_UPGRADE_REQUIRED
 */
export async function admitToPrimary(
  env: Env,
  hostId: string,
  verifier: string,
): Promise<Result<z.output<typeof StandbyReply>, Failure>> {
  const db = openDatabase(env.DB);
  const found = await readMember(env, hostId);
  const primaryId = found?.row.standbyOf;
  if (!found || !primaryId) return fail({ code: 'HOST_NOT_STANDBY' });
  const primary = await readMember(env, primaryId);
  if (!primary) return fail({ code: 'HOST_NOT_STANDBY' });
  try {
    // An agent of an earlier release could neither close its host nor fence it.
    await hostCaller(env, primaryId)('member.read', {});
  } catch (error) {
    return fail(admissionFailure(error));
  }
  const generation = await nextGeneration(env, [found.row, primary.row]);
  const other = and(followsHost(primaryId), sql`${hosts.id} <> ${hostId}`);
  const pair = { primary: primary.row, standby: found.row };
  const written = await transition(db, 'admit', pair, {
    generation,
    require: [[sql`not ${isThere(hosts, other)}`, 'HOST_HAS_STANDBY']],
    now: new Date(),
  });
  if (!written.ok) return written;
  const { dbHost: db_host, directPort: direct_port, caCertificate: ca_certificate } = primary.row;
  const standby = { standby_id: hostId, db_host: found.row.dbHost, verifier, generation };
  try {
    const { login } = await hostCaller(env, primaryId)('standby.admit', standby);
    // The primary gets its new record, with a lease if it needs one.
    await hostLink(env, primaryId).reconcile();
    return ok({ generation, db_host, direct_port, ca_certificate, login });
  } catch (error) {
    return fail(admissionFailure(error));
  }
}

function admissionFailure(error: unknown): Failure {
  const isOlder = error instanceof HostCallError && error.code === 'HOST_UPGRADE_REQUIRED';
  return { code: isOlder ? 'HOST_UPGRADE_REQUIRED' : 'HOST_UNAVAILABLE', reason: String(error) };
}

/**
 * Above those on record, and above those that the members know: they ignore an older record, also one of a D1 that was
 * restored. A member that cannot be asked does not count.
 */
async function nextGeneration(env: Env, rows: readonly HostRow[]): Promise<number> {
  const states = await Promise.all(rows.map(({ id }) => readState(env, id)));
  const known = states.map((state) => state?.generation ?? 0);
  return Math.max(...rows.map(({ generation }) => generation), ...known) + 1;
}

/** A look at a primary that is closed opens it again when the request of its switch has not said for so long that it lives. */
const YIELDS_FOR_MS = 30_000;
const RENEW_EVERY_MS = 5_000;
const CLOSED_LOOK_MS = 10_000;
/** Until a record is sent again that a host which serves could not apply. */
const RETRY_MS = 30_000;
const CAUGHT_UP_WITHIN_MS = 30_000;
const POLL_EVERY_MS = 200;

/**
 * Makes the standby the primary. Without `lost` its primary is closed first, and nothing is lost. A repeated request finishes
 * what an interrupted one has begun.
 * @param lost the primary, if it cannot be reached any more
 * @param force also if it is linked, so that it could be closed first and nothing would have to be lost
 * @returns or NOT_FOUND, VALIDATION_FAILED, HOST_NOT_STANDBY, PRIMARY_LINKED, STANDBY_NOT_READY, PRIMARY_UNAVAILABLE
 */
export async function promoteStandby(
  env: Env,
  hostId: string,
  { lost, force }: { lost: string | null; force: boolean },
  now: Date,
): Promise<Result<{ survivedUntil: string | null }, Failure>> {
  const found = await readMember(env, hostId);
  if (!found) return fail({ code: 'NOT_FOUND' });
  const { row: standby } = found;
  const primaryId = standby.standbyOf;
  if (primaryId === null) {
    const isPromoted = await isPromotedFrom(openDatabase(env.DB), hostId, lost);
    return isPromoted ? finishPromotion(env, hostId) : fail({ code: 'HOST_NOT_STANDBY' });
  }
  if (standby.role === 'fenced') return fail({ code: 'HOST_NOT_STANDBY' });
  if (lost !== null && lost !== primaryId)
    return fail({
      code: 'VALIDATION_FAILED',
      fields: { details: [{ path: 'lost', message: 'is not the primary of this standby' }] },
    });
  if (lost !== null && !force && (await isLinked(env, primaryId))) return fail({ code: 'PRIMARY_LINKED' });
  if (!hasCopy(standby, await readState(env, hostId))) return fail({ code: 'STANDBY_NOT_READY' });
  const closed = lost === null ? await closePrimary(env, primaryId, hostId, now) : ok(null);
  if (!closed.ok) return closed;
  const written = await writePromotion(env, { hostId, primaryId, closedBy: closed.value });
  if (!written.ok) return written;
  logEvent('host.promoted', { host_id: hostId, former_primary_id: primaryId, lost: lost !== null });
  await lookSoon(env, [hostId, primaryId]);
  return finishPromotion(env, hostId);
}

/** A former primary that has not begun its copy knows an older record. */
const hasCopy = ({ generation }: HostRow, state: MemberState | null): boolean =>
  generation > 0 && state !== null && state.position !== null && state.generation === generation;

/** WAL that a standby may lack when it takes the place of its primary by itself. */
const MISSING_BYTES_MAX = 64 * 2 ** 20;
/** How much earlier than the gateway it may have lost its primary. */
const LOST_EARLIER_MAX_SECONDS = 15;

/** Why a standby may not take the place of its primary by itself; null: it may. */
function notPromotable(standby: HostRow, state: MemberState | null, silentSeconds: number): string | null {
  if (state === null || !hasCopy(standby, state)) return 'the standby is away, or has no copy';
  if (state.lag_bytes !== null) return 'the standby can reach the primary, which must not be running then';
  if (state.unheard === null) return 'the standby has not followed the primary since its agent was started';
  if (state.unheard.bytes > MISSING_BYTES_MAX) return 'the standby lacks too much';
  const earlier = state.unheard.seconds - silentSeconds;
  return earlier > LOST_EARLIER_MAX_SECONDS ? 'the standby had lost the primary before' : null;
}

/**
 * Makes the standby of a primary whose lease has ended the primary, if it is near enough.
 * @param lease of the last renewal: the generation of the record then, and how long ago it was
 * @param decide called before the one write; false: the lease was renewed meanwhile, and nothing is written
 * @returns `isPromoted`: null for a host that needs no lease; with the generation of its record before
 * @throws Error when it is not known whether that was done
 */
export async function promoteLapsed(
  env: Env,
  primaryId: string,
  lease: { generation: number; silentMs: number },
  decide: () => boolean = () => true,
): Promise<{ isPromoted: boolean | null; generation: number }> {
  const primary = await readMember(env, primaryId);
  const generation = primary?.row.generation ?? 0;
  if (primary?.row.standbyOf && primary.row.role === 'fenced') {
    // An earlier call has written it, and perhaps nothing more.
    await lookSoon(env, [primary.row.standbyOf]);
    return { isPromoted: true, generation };
  }
  const hostId = primary?.member.standby_id ?? null;
  if (!primary || hostId === null || primary.member.lease_seconds === null)
    return { isPromoted: null, generation };
  const silentSeconds = Math.round(lease.silentMs / 1_000);
  const standby = await readMember(env, hostId);
  const state = await readState(env, hostId);
  // A renewal shows that it needs a lease by this record, and not that it needed one in a former time.
  const isOlder = lease.generation !== generation;
  const reason = isOlder
    ? 'the primary has not renewed its lease since its record changed'
    : standby && notPromotable(standby.row, state, silentSeconds);
  if (!standby || reason !== null) {
    logEvent('host.not_promoted', { host_id: hostId, primary_id: primaryId, reason });
    return { isPromoted: false, generation };
  }
  if (!decide()) return { isPromoted: false, generation };
  const written = await writePromotion(env, { hostId, primaryId, closedBy: null });
  if (!written.ok) return { isPromoted: false, generation };
  const fields = { host_id: hostId, former_primary_id: primaryId, silent_seconds: silentSeconds };
  logEvent('host.promoted', fields);
  // If this call fails, the next reconciliation completes it.
  await lookSoon(env, [hostId, primaryId]);
  await finishPromotion(env, hostId);
  return { isPromoted: true, generation };
}

const isPromotedFrom = async (db: Database, hostId: string, lost: string | null): Promise<boolean> => {
  const former = and(eq(hosts.standbyOf, hostId), eq(hosts.role, 'fenced'));
  const [row] = await db
    .select({ id: hosts.id })
    .from(hosts)
    .where(lost === null ? former : and(former, eq(hosts.id, lost)));
  return row !== undefined;
};

/**
 * Closes the primary, and waits until the standby has all that it has written. It opens again if that fails.
 * @returns the generation of the record that closed it, or PRIMARY_UNAVAILABLE, STANDBY_NOT_READY, HOST_BUSY also while a project
 *   moves to or from it
 */
async function closePrimary(
  env: Env,
  primaryId: string,
  standbyId: string,
  now: Date,
): Promise<Result<number, Failure>> {
  const db = openDatabase(env.DB);
  const [row] = await db.select().from(hosts).where(eq(hosts.id, primaryId));
  if (!row) return fail({ code: 'PRIMARY_UNAVAILABLE' });
  const standby = await readMember(env, standbyId);
  if (!standby) return fail({ code: 'HOST_NOT_STANDBY' });
  const generation = await nextGeneration(env, [row]);
  const pair = { primary: row, standby: standby.row };
  const closed = await transition(db, 'close', pair, {
    generation,
    require: [[sql`not ${isMoving(primaryId)}`, 'HOST_BUSY']],
    now,
  });
  if (!closed.ok) return closed;
  const isOwn = and(eq(hosts.id, primaryId), eq(hosts.role, 'closing'), eq(hosts.generation, generation));
  const renewing = setInterval(() => {
    db.update(hosts)
      .set({ yieldsSince: new Date() })
      .where(isOwn)
      .catch(() => {});
  }, RENEW_EVERY_MS);
  try {
    await lookSoon(env, [primaryId]);
    return await untilLevel(env, { primaryId, standbyId, generation });
  } finally {
    clearInterval(renewing);
  }
}

/** @returns the generation that was given */
async function untilLevel(
  env: Env,
  { primaryId, standbyId, generation }: { primaryId: string; standbyId: string; generation: number },
): Promise<Result<number, Failure>> {
  const refuse = async (failure: Failure): Promise<Result<number, Failure>> => {
    await reopen(env, primaryId);
    return fail(failure);
  };
  let position: number | null;
  try {
    const state = await pushMember(env, primaryId);
    // A host that ignored the record, for a newer one, is not closed.
    position = state?.generation === generation ? state.position : null;
  } catch (error) {
    const isBusy = error instanceof HostCallError && error.code === 'HOST_BUSY';
    return refuse({ code: isBusy ? 'HOST_BUSY' : 'PRIMARY_UNAVAILABLE', reason: String(error) });
  }
  if (position === null) return refuse({ code: 'PRIMARY_UNAVAILABLE' });
  const deadline = Date.now() + CAUGHT_UP_WITHIN_MS;
  for (;;) {
    const state = await readState(env, standbyId);
    if ((state?.position ?? 0) >= position) return ok(generation);
    if (Date.now() > deadline) return refuse({ code: 'STANDBY_NOT_READY' });
    await new Promise((resolve) => setTimeout(resolve, POLL_EVERY_MS));
  }
}

/** An interrupted change of records is finished by the next look at the hosts, which is brought forward. Never throws. */
const lookSoon = (env: Env, hostIds: readonly string[]) =>
  Promise.allSettled(hostIds.map(async (id) => hostLink(env, id).reconcile()));

/** Abandons a planned switchover that has not been committed. @param before only one whose last heartbeat is older */
async function reopen(env: Env, primaryId: string, before?: Date): Promise<void> {
  const db = openDatabase(env.DB);
  const found = await readMember(env, primaryId);
  if (found?.row.role !== 'closing') return;
  const isDue = and(eq(hosts.id, primaryId), before && lt(hosts.yieldsSince, before));
  const pair = { primary: found.row, standby: null };
  const reopened = await transition(db, 'reopen', pair, {
    generation: found.row.generation + 1,
    require: [[isThere(hosts, isDue), 'HOST_BUSY']],
    now: new Date(),
  });
  if (!reopened.ok) return;
  logEvent('host.reopened', { host_id: primaryId });
  await pushMember(env, primaryId).catch((error) =>
    logEvent('host.not_open_yet', { host_id: primaryId, reason: String(error) }),
  );
}

/**
 * The one write that decides: it gives the standby the projects and the open jobs of its primary, which is fenced.
 * @param closedBy the generation of the record by which the primary was closed and has stayed so; null: the primary is lost
 * @returns or HOST_NOT_STANDBY if either has changed meanwhile
 */
async function writePromotion(
  env: Env,
  { hostId, primaryId, closedBy }: { hostId: string; primaryId: string; closedBy: number | null },
): Promise<Result<unknown, Failure>> {
  const db = openDatabase(env.DB);
  const [primary, standby] = await Promise.all([readMember(env, primaryId), readMember(env, hostId)]);
  if (!primary || !standby) return fail({ code: 'HOST_NOT_STANDBY' });
  const rows = { primary: primary.row, standby: standby.row };
  // A later request may have reopened it, and a third one closed it again.
  const isClosedBy = closedBy !== null && and(eq(hosts.id, primaryId), eq(hosts.generation, closedBy));
  return transition(db, closedBy === null ? 'fail over' : 'switch over', rows, {
    generation: await nextGeneration(env, [primary.row, standby.row]),
    require: isClosedBy ? [[isThere(hosts, isClosedBy), 'HOST_NOT_STANDBY']] : [],
    now: new Date(),
    rest: (isAllowed) => [
      db
        .update(projects)
        .set({
          hostId,
          ...(closedBy === null && { owesNotice: sql`${projects.status} <> 'failed'` }),
        })
        .where(and(eq(projects.hostId, primaryId), isAllowed)),
      db
        .update(jobs)
        .set({ hostId })
        // The databases that a project has left are kept for a day, by the job of its move.
        .where(and(eq(jobs.hostId, primaryId), or(isOpenJob, isMove), isAllowed)),
      ...replaceInMoves(db, { hostId, primaryId }, isAllowed),
    ],
  });
}

const OF_LOST_HOST = 'A standby has taken the place of a host of this move. Move the project again.';

/**
 * The new primary has what the former one had of a move, but no slot, and perhaps not its last changes. So a move that has not
 * switched its project is undone, and a later one is finished there.
 */
function replaceInMoves(
  db: Database,
  { hostId, primaryId }: { hostId: string; primaryId: string },
  isAllowed: SQL,
): Statement[] {
  const replaced = (column: SQLWrapper) =>
    sql`case when ${column} = ${primaryId} then ${hostId} else ${column} end`;
  const isHere = or(eq(moves.fromHostId, primaryId), eq(moves.toHostId, primaryId));
  const isUndoable = and(isHere, inArray(moves.phase, ['building', 'fenced']));
  return [
    db
      .update(jobs)
      .set({ error: jobError(new SourceUnsuitableError(OF_LOST_HOST)) })
      .where(
        and(
          inArray(jobs.id, db.select({ id: moves.jobId }).from(moves).where(isUndoable)),
          ...[isOpenJob, isNull(jobs.error), isAllowed],
        ),
      ),
    db
      .update(jobs)
      .set({ input: sql`json_set(${jobs.input}, '$.toHostId', ${hostId})` })
      .where(and(isMove, isOpenJob, sql`${jobs.input} ->> '$.toHostId' = ${primaryId}`, isAllowed)),
    db
      .update(moves)
      .set({
        fromHostId: replaced(moves.fromHostId),
        toHostId: replaced(moves.toHostId),
        updatedAt: new Date(),
      })
      .where(and(isHere, isAllowed)),
  ];
}

/** @returns or STANDBY_NOT_READY while it does not serve; the next look at it finishes the promotion */
async function finishPromotion(
  env: Env,
  hostId: string,
): Promise<Result<{ survivedUntil: string | null }, Failure>> {
  try {
    const state = await pushMember(env, hostId);
    return ok({ survivedUntil: state?.survived_until ?? null });
  } catch (error) {
    return fail({ code: 'STANDBY_NOT_READY', reason: String(error) });
  }
}

/**
 * Sends a member what is on record of it, and does what follows from its reply.
 * @returns null for a host that never had a standby and is none
 * @throws HostCallError
 */
export async function pushMember(env: Env, hostId: string): Promise<MemberState | null> {
  const found = await readMember(env, hostId);
  if (!found || (found.row.generation === 0 && found.row.standbyOf === null)) return null;
  // A standby that has not begun to copy has nothing to apply.
  if (found.row.generation === 0) return readState(env, hostId);
  if (found.member.role === 'primary') {
    await fenceFormer(env, found.row);
    // A host without a lease serves on, so none is counted any more.
    const isFree = found.member.lease_seconds === null;
    if (isFree && !(await hostLink(env, hostId).dropLease(found.row.generation))) return null;
  }
  const state = await hostCaller(env, hostId)('member.apply', found.member);
  if (state.sync !== found.row.sync) await recordSync(env, hostId, state);
  await recordApplied(openDatabase(env.DB), found.row, state);
  if (found.member.role === 'primary') {
    const areLeft = await notifyTenants(env, hostId, state.survived_until).catch((error) => {
      logEvent('host.tenants_not_notified', { host_id: hostId, reason: String(error) });
      return false;
    });
    if (areLeft) await lookSoon(env, [hostId]);
  }
  return state;
}

/** A reply that names another record says nothing about this one. */
async function recordApplied(
  db: Database,
  { id, generation, appliedGeneration }: HostRow,
  state: MemberState,
): Promise<void> {
  if (state.generation !== generation || appliedGeneration === generation) return;
  await db
    .update(hosts)
    .set({ appliedGeneration: generation })
    .where(and(eq(hosts.id, id), eq(hosts.generation, generation)));
}

/**
 * Fences the former primary of a host that does not serve as the primary yet, if it can be reached. So one that
 * is linked is closed before the other one opens, whichever request finishes the promotion.
 */
async function fenceFormer(env: Env, { id, generation }: HostRow): Promise<void> {
  const db = openDatabase(env.DB);
  const formers = await db
    .select({ id: hosts.id })
    .from(hosts)
    .where(and(eq(hosts.standbyOf, id), eq(hosts.role, 'fenced')));
  if (formers.length === 0 || (await readState(env, id))?.generation === generation) return;
  for (const former of formers)
    await pushMember(env, former.id).catch((error) =>
      logEvent('host.not_fenced_yet', { host_id: former.id, reason: String(error) }),
    );
}

/** The state of a host, as its reconciliation found it. */
interface MemberLook {
  /** True if the host serves projects. */
  serves: boolean;
  /** When to look again, in milliseconds; null: at the regular time. */
  again: number | null;
}

/**
 * Sends a host its role at each reconciliation, and ends a switchover that was interrupted.
 * @throws HostCallError
 */
export async function syncMember(env: Env, hostId: string, now: Date): Promise<MemberLook> {
  const found = await readMember(env, hostId);
  if (!found) return { serves: false, again: null };
  const { role, closing } = found.member;
  if (closing) await reopen(env, hostId, new Date(now.getTime() - YIELDS_FOR_MS));
  const serves = role === 'primary' && !closing;
  let again = closing ? CLOSED_LOOK_MS : null;
  try {
    await pushMember(env, hostId);
  } catch (error) {
    // An agent that is not the primary yet refuses all other work too. What else it fails with must not hold that up.
    if (!serves) throw error;
    logEvent('host.role_not_applied', { host_id: hostId, reason: String(error) });
    again = RETRY_MS;
  }
  if (role === 'standby') await recordDescription(env, hostId);
  return { serves, again };
}

/** Stores the description of a host whose databases are not compared. */
async function recordDescription(env: Env, hostId: string): Promise<void> {
  const description = await hostCaller(env, hostId)('host.describe', {}).catch(() => null);
  if (description === null) return;
  await openDatabase(env.DB)
    .update(hosts)
    .set({ description, describedAt: new Date() })
    .where(eq(hosts.id, hostId));
}
