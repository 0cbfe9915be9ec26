import { and, eq, inArray, isNull, lt, or, sql } from 'drizzle-orm';
import type { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { MemberState, StandbyReply } from '../../shared/protocol/standby.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type Coordinators, coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type Database, type DatabaseBinding, isThere, openDatabase } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { hosts, jobs, projects } from '../database/schema.ts';
import { HostCallError, type HostLinks, hostCaller, hostLink } from '../hosts/host-client.ts';
import { followsHost, type HostRow, isPrimary, readMember, readState, recordSync } from '../hosts/standby.ts';
import { logEvent } from '../log.ts';
import { inOneLine, plainMail } from '../mail/mail.ts';
import { membersOf as peopleOf } from '../people/members.ts';
import { readSettings } from '../settings.ts';

/** What changes the record of a host and its standby, and brings it to their agents. */

type Env = DatabaseBinding & HostLinks & Coordinators;

/**
 * Lets a standby copy its primary: the primary makes its login, and from then on asks for its role before its servers start. Also
 * a former primary becomes a standby by it.
 * @param verifier of the password that the standby made
 * @returns or HOST_NOT_STANDBY, HOST_HAS_STANDBY, HOST_UNAVAILABLE
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
  const generation = await nextGeneration(env, [found.row, primary.row]);
  const other = and(followsHost(primaryId), sql`${hosts.id} <> ${hostId}`);
  const written = await guardedWrite(db, {
    first: (isAllowed) =>
      db
        .update(hosts)
        .set({ generation, fenced: false })
        .where(and(inArray(hosts.id, [hostId, primaryId]), isAllowed)),
    require: [
      [isThere(hosts, and(eq(hosts.id, hostId), eq(hosts.standbyOf, primaryId))), 'HOST_NOT_STANDBY'],
      [isThere(hosts, and(eq(hosts.id, primaryId), isPrimary)), 'HOST_NOT_STANDBY'],
      [sql`not ${isThere(hosts, other)}`, 'HOST_HAS_STANDBY'],
      [isThere(hosts, and(eq(hosts.id, primaryId), isNull(hosts.yieldsTo))), 'HOST_UNAVAILABLE'],
      ...areAsRead([found.row, primary.row]).map((condition) => [condition, 'HOST_UNAVAILABLE'] as const),
    ],
  });
  if (!written.ok) return written;
  const { dbHost: db_host, directPort: direct_port, caCertificate: ca_certificate } = primary.row;
  const standby = { standby_id: hostId, db_host: found.row.dbHost, verifier, generation };
  try {
    const { login } = await hostCaller(env, primaryId)('standby.admit', standby);
    // It gets its new record, with a lease if it needs one.
    await hostLink(env, primaryId).reconcile();
    return ok({ generation, db_host, direct_port, ca_certificate, login });
  } catch (error) {
    return fail({ code: 'HOST_UNAVAILABLE', reason: String(error) });
  }
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

/** Whether no other request has changed these records since they were read. */
const areAsRead = (rows: readonly HostRow[]) =>
  rows.map(({ id, generation }) => isThere(hosts, and(eq(hosts.id, id), eq(hosts.generation, generation))));

/** How long a planned switch may keep a primary closed, before the next look at it opens it again. */
const YIELDS_FOR_MS = 120_000;
const CAUGHT_UP_WITHIN_MS = 30_000;
const POLL_EVERY_MS = 200;

/**
 * Makes the standby the primary. Without `lost` its primary is closed first, and nothing is lost. A repeated request finishes
 * what an interrupted one has begun.
 * @param lost the primary, if it cannot be reached any more
 * @returns or NOT_FOUND, VALIDATION_FAILED, HOST_NOT_STANDBY, STANDBY_NOT_READY, PRIMARY_UNAVAILABLE
 */
export async function promoteStandby(
  env: Env,
  hostId: string,
  lost: string | null,
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
  if (standby.fenced) return fail({ code: 'HOST_NOT_STANDBY' });
  if (lost !== null && lost !== primaryId)
    return fail({
      code: 'VALIDATION_FAILED',
      fields: { details: [{ path: 'lost', message: 'is not the primary of this standby' }] },
    });
  if (!hasCopy(standby, await readState(env, hostId))) return fail({ code: 'STANDBY_NOT_READY' });
  const closed = lost === null ? await closePrimary(env, primaryId, hostId, now) : ok(null);
  if (!closed.ok) return closed;
  const written = await writePromotion(env, { hostId, primaryId, closedBy: closed.value });
  if (!written.ok) return written;
  logEvent('host.promoted', { host_id: hostId, former_primary_id: primaryId, lost: lost !== null });
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
 * @returns `isPromoted`: null for a host that is no primary with a lease; with the generation of its record before
 * @throws Error when it is not known whether that was done
 */
export async function promoteLapsed(
  env: Env,
  primaryId: string,
  lease: { generation: number; silentMs: number },
): Promise<{ isPromoted: boolean | null; generation: number }> {
  const primary = await readMember(env, primaryId);
  const generation = primary?.row.generation ?? 0;
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
  const written = await writePromotion(env, { hostId, primaryId, closedBy: null });
  if (!written.ok) return { isPromoted: false, generation };
  const fields = { host_id: hostId, former_primary_id: primaryId, silent_seconds: silentSeconds };
  logEvent('host.promoted', fields);
  // The next look at it does it otherwise.
  await finishPromotion(env, hostId);
  return { isPromoted: true, generation };
}

const isPromotedFrom = async (db: Database, hostId: string, lost: string | null): Promise<boolean> => {
  const former = and(eq(hosts.standbyOf, hostId), eq(hosts.fenced, true));
  const [row] = await db
    .select({ id: hosts.id })
    .from(hosts)
    .where(lost === null ? former : and(former, eq(hosts.id, lost)));
  return row !== undefined;
};

/**
 * Closes the primary, and waits until the standby has all that it has written. It opens again if that fails.
 * @returns the generation of the record that closed it, or PRIMARY_UNAVAILABLE, STANDBY_NOT_READY, HOST_BUSY
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
  const generation = await nextGeneration(env, [row]);
  const isFree = or(isNull(hosts.yieldsTo), eq(hosts.yieldsTo, standbyId));
  const isAsRead = eq(hosts.generation, row.generation);
  const changed = await db
    .update(hosts)
    .set({ yieldsTo: standbyId, yieldsSince: now, generation })
    .where(and(eq(hosts.id, primaryId), isPrimary, isFree, isAsRead))
    .returning({ id: hosts.id });
  if (changed.length === 0) return fail({ code: 'HOST_BUSY' });
  const refuse = async (failure: Failure): Promise<Result<number, Failure>> => {
    await reopen(env, primaryId);
    return fail(failure);
  };
  let position: number | null;
  try {
    const state = await pushMember(env, primaryId);
    // One that has ignored the record, for a newer one, is not closed.
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

/** Ends a planned switch that has not been committed. @param before only one that began before */
async function reopen(env: Env, primaryId: string, before?: Date): Promise<void> {
  const db = openDatabase(env.DB);
  const isDue = and(sql`${hosts.yieldsTo} is not null`, before && lt(hosts.yieldsSince, before));
  const reopened = await db
    .update(hosts)
    .set({ yieldsTo: null, yieldsSince: null, generation: sql`${hosts.generation} + 1` })
    .where(and(eq(hosts.id, primaryId), isPrimary, isDue))
    .returning({ id: hosts.id });
  if (reopened.length === 0) return;
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
  const rows = await db
    .select()
    .from(hosts)
    .where(inArray(hosts.id, [hostId, primaryId]));
  const generation = await nextGeneration(env, rows);
  const isStandby = and(eq(hosts.id, hostId), eq(hosts.standbyOf, primaryId), eq(hosts.fenced, false));
  // A later request may have opened it again, and have been followed by a third one that closes it.
  const stillClosed = closedBy === null ? [] : [eq(hosts.yieldsTo, hostId), eq(hosts.generation, closedBy)];
  const isClosed = and(eq(hosts.id, primaryId), isPrimary, ...stillClosed);
  const of = (id: string) => sql`${hosts.id} = ${id}`;
  return guardedWrite(db, {
    first: (isAllowed) =>
      db
        .update(hosts)
        .set({
          standbyOf: sql`case when ${of(hostId)} then null else ${hostId} end`,
          fenced: sql`${of(primaryId)}`,
          owesNotice: sql`${of(hostId)} and ${closedBy === null ? 1 : 0}`,
          ...{ yieldsTo: null, yieldsSince: null, generation, sync: 'off' },
        })
        .where(and(inArray(hosts.id, [hostId, primaryId]), isAllowed)),
    require: [
      ...([
        [isThere(hosts, isStandby), 'HOST_NOT_STANDBY'],
        [isThere(hosts, isClosed), 'HOST_NOT_STANDBY'],
      ] as const),
      ...areAsRead(rows).map((condition) => [condition, 'HOST_NOT_STANDBY'] as const),
    ],
    rest: (isAllowed) => [
      db
        .update(projects)
        .set({ hostId })
        .where(and(eq(projects.hostId, primaryId), isAllowed)),
      db
        .update(jobs)
        .set({ hostId })
        .where(and(eq(jobs.hostId, primaryId), inArray(jobs.status, ['queued', 'running']), isAllowed)),
    ],
  });
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
  if (found.member.role === 'primary') await fenceFormer(env, found.row);
  // A host without a lease serves on, so none is counted any more.
  if (found.member.role === 'primary' && found.member.lease_seconds === null)
    await hostLink(env, hostId).dropLease();
  const state = await hostCaller(env, hostId)('member.apply', found.member);
  if (state.sync !== found.row.sync) await recordSync(env, hostId, state);
  if (found.row.owesNotice) await notifyTenants(env, found.row, state.survived_until);
  return state;
}

/**
 * Fences the former primary of a host that does not serve as the primary yet, if it can be reached: whoever finishes a promotion,
 * one that is linked is closed before the other one opens.
 */
async function fenceFormer(env: Env, { id, generation }: HostRow): Promise<void> {
  const db = openDatabase(env.DB);
  const formers = await db
    .select({ id: hosts.id })
    .from(hosts)
    .where(and(eq(hosts.standbyOf, id), eq(hosts.fenced, true)));
  if (formers.length === 0 || (await readState(env, id))?.generation === generation) return;
  for (const former of formers)
    await pushMember(env, former.id).catch((error) =>
      logEvent('host.not_fenced_yet', { host_id: former.id, reason: String(error) }),
    );
}

/**
 * What a look at a host does about its role: sends it, and ends a switch that was interrupted.
 * @returns whether the host serves projects now
 * @throws HostCallError
 */
export async function syncMember(env: Env, hostId: string, now: Date): Promise<boolean> {
  const found = await readMember(env, hostId);
  if (!found) return false;
  if (found.member.closing) await reopen(env, hostId, new Date(now.getTime() - YIELDS_FOR_MS));
  await pushMember(env, hostId);
  if (found.member.role === 'standby') await recordDescription(env, hostId);
  return found.member.role === 'primary' && !found.member.closing;
}

/** Of a host whose databases are not compared. */
async function recordDescription(env: Env, hostId: string): Promise<void> {
  const description = await hostCaller(env, hostId)('host.describe', {}).catch(() => null);
  if (description === null) return;
  await openDatabase(env.DB)
    .update(hosts)
    .set({ description, describedAt: new Date() })
    .where(eq(hosts.id, hostId));
}

/** Mails to one tenant. Each names all its projects on the host. */
const OWNERS_MAX = 20;

/**
 * Informs the tenants of a promoted standby, by an event of each project and a mail to the owners, until when what they had
 * written survived. It is repeated if it is interrupted.
 */
async function notifyTenants(
  env: Env,
  { id: hostId, name }: HostRow,
  survivedUntil: string | null,
): Promise<void> {
  const db = openDatabase(env.DB);
  const placed = await db
    .select({ id: projects.id, name: projects.name, tenantId: projects.tenantId })
    .from(projects)
    .where(and(eq(projects.hostId, hostId), sql`${projects.status} <> 'failed'`));
  const tenants = Map.groupBy(placed, ({ tenantId }) => tenantId);
  for (const [tenantId, own] of tenants) {
    const [first] = own;
    const people = await peopleOf(db, readSettings(env), tenantId);
    const owners = people.filter(({ accountRole, tokenRole }) => (accountRole ?? tokenRole) === 'owner');
    const addresses = [...new Set(owners.map(({ email }) => email))].slice(0, OWNERS_MAX);
    const names = own.map((project) => inOneLine(project.name));
    const mails = addresses.map((email) => failoverMail(email, names, survivedUntil));
    if (first && mails.length > 0) await coordinatorOf(env, first.id).sendMails(mails);
  }
  const failedOverAt = new Date();
  await db.batch([
    db
      .update(projects)
      .set({ failedOverAt, survivedUntil: survivedUntil === null ? null : new Date(survivedUntil) })
      .where(
        and(
          eq(projects.hostId, hostId),
          isThere(hosts, and(eq(hosts.id, hostId), eq(hosts.owesNotice, true))),
        ),
      ),
    db.update(hosts).set({ owesNotice: false }).where(eq(hosts.id, hostId)),
  ]);
  logEvent('host.tenants_notified', { host: name, projects: placed.length, survived_until: survivedUntil });
  await Promise.allSettled(placed.map((project) => coordinatorOf(env, project.id).wake()));
}

const failoverMail = (to: string, names: readonly string[], survivedUntil: string | null) =>
  plainMail(
    to,
    `The database host of ${names.length === 1 ? names[0] : `${names.length} projects`} was replaced`,
    [
      `A machine was lost, and its standby has taken its place. It has the databases of: ${names.join(', ')}.`,
      survivedUntil === null
        ? 'What was written in the last seconds before may be missing. Check what your applications have written.'
        : `Everything that was committed until ${survivedUntil} is there. What was written after it may be missing.`,
      'Passwords and network rules are as before. Clients have to connect again. If your URLs show the address of the host, get them again.',
    ],
  );
