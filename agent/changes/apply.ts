import { setTimeout as sleep } from 'node:timers/promises';
import { backoff } from '../../shared/backoff.ts';
import type { AppliedChange, StopReason } from '../../shared/protocol/change-operations.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { digestAsLogin } from '../difference/schema/compare-schemas.ts';
import { type ComparisonLogin, withComparisonLogin } from '../difference/schema/comparison-login.ts';
import { breakOff, type OwnSession, type Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { asHostError, LOCK_NOT_AVAILABLE, sqlState } from '../postgres/postgres-failure.ts';
import { runStatement } from '../postgres/run-statement.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';
import { openChangeSession } from '../rows/branch-session.ts';
import {
  beginRecord,
  type ChangeRecord,
  endLeft,
  isCommitted,
  readRecord,
  recordAlone,
  recordCommit,
  recordDone,
  recordLogin,
  removeLeft,
} from './record.ts';
import { type ChangeHost, MESSAGE_MAX, placeOf, readingSignal } from './rehearse.ts';
import { repeatSettings, runStep, StatementError } from './step.ts';

/**
 * Runs the steps of a change in `main`. A step that waits for a lock gives up after `lock_timeout`, so nobody queues behind
 * it for longer, and is repeated after a pause. Each attempt has a session of its own: between two attempts nothing of the
 * change is in the database, and a clone of `main` waits for nobody.
 */

type Applying = Params<'change.apply'>;
type Step = Applying['steps'][number];

/** The calls of this process, which a repeated call joins, and which `settleChange` stops. */
const RUNNING = new Map<string, { applied: Promise<AppliedChange>; stop: AbortController }>();

/** Applications in one call. Minutes. */
const LEASE_MINUTES = 24 * 60;
const PAUSE = { first: 100, longest: 5_000 };
/** For the record of a step, beside the time of its statements. Milliseconds. */
const RECORD_WITHIN_MS = 200;
/** Beyond it, an index that an interrupted statement has left stays, and the change stops. */
const CLEAN_WITHIN_MS = 60_000;

/** Readings of the schema of `main` before one that takes too long ends the call. */
const READ_TRIES = 3;

/** SQLSTATEs that another attempt can get past: a lock that is not free, a deadlock, a serialization failure. */
const WAITS: readonly (string | undefined)[] = [LOCK_NOT_AVAILABLE, '40P01', '40001'];
const TIMED_OUT: readonly (string | undefined)[] = ['57014', '25P04'];

/** @throws HostError PROJECT_BUSY, HOST_BUSY, and what says nothing about a statement */
export function applyChange(
  host: ChangeHost,
  params: Applying,
  onProgress?: OnProgress,
): Promise<MethodResult<'change.apply'>> {
  const { change_id } = params;
  const running = RUNNING.get(change_id);
  if (running) return running.applied;
  const stop = new AbortController();
  const applied = applyInTurn(host, params, { signal: stop.signal, onProgress }).finally(() =>
    RUNNING.delete(change_id),
  );
  RUNNING.set(change_id, { applied, stop });
  return applied;
}

interface Options {
  signal: AbortSignal;
  onProgress: OnProgress | undefined;
}

async function applyInTurn(host: ChangeHost, params: Applying, options: Options): Promise<AppliedChange> {
  const leave = host.changes.enter(params.project_id);
  try {
    return await withLocks(host.sessions, [`change:${params.branch_id}`], (platform) =>
      applyAlone(host, platform, params, options),
    );
  } finally {
    leave();
  }
}

async function applyAlone(
  host: ChangeHost,
  platform: Session,
  params: Applying,
  options: Options,
): Promise<AppliedChange> {
  const known = await readRecord(platform, params.change_id);
  if (known) await removeLeft(platform, known);
  return asChange(host, platform, params, (login) =>
    applyFrom({ host, platform, login }, known, params, options),
  );
}

/** Who applies a change, and with which sessions. */
interface Applier {
  host: ChangeHost;
  platform: Session;
  login: ComparisonLogin;
}

/** Runs `action` with a login for all sessions of the call in `main`. The next call removes what a kill leaves. */
const asChange = <T>(
  host: ChangeHost,
  platform: Session,
  params: Pick<Applying, 'change_id'> & Main,
  action: (login: ComparisonLogin) => Promise<T>,
): Promise<T> =>
  withComparisonLogin(host, params.project_id, [params.database], action, LEASE_MINUTES, (name) =>
    recordLogin(platform, params, name),
  );

async function applyFrom(
  applier: Applier,
  known: ChangeRecord | null,
  params: Applying,
  { signal, onProgress }: Options,
): Promise<AppliedChange> {
  const { platform } = applier;
  const { job_id, steps } = params;
  const isResumed = known?.job_id === job_id;
  let done = known ? await settledSteps(applier, known, params, steps) : params.done;
  if (!isResumed) {
    done = Math.max(done, params.done);
    const schema = await schemaOf(applier, params);
    // An earlier job of the change can have applied more than its end has reported.
    if (schema !== params.schema && done === params.done)
      return { reason: 'stale', error: null, done, schema, steps: [] };
  }
  await beginRecord(platform, { ...params, done });
  const applied: AppliedChange['steps'] = [];
  let stopped: Stop | null = null;
  while (done < steps.length && !stopped) {
    const began = performance.now();
    const { attempts, stop } = await applyStep(applier, params, { at: done, signal });
    applied.push({ step: done + 1, attempts, duration_ms: performance.now() - began });
    stopped = stop;
    if (stop) continue;
    done += 1;
    onProgress?.(done / steps.length);
  }
  const schema = await schemaOf(applier, params);
  return { reason: stopped?.reason ?? null, error: stopped?.error ?? null, done, schema, steps: applied };
}

type Main = Pick<Applying, 'project_id' | 'branch_id' | 'database'>;

/** @throws HostError TIME_LIMIT_REACHED */
async function schemaOf({ host, login }: Applier, { branch_id, database }: Main): Promise<string> {
  for (let tries = 1; ; tries += 1)
    try {
      return await digestAsLogin(host, login, { branch_id, database }, readingSignal());
    } catch (error) {
      // A busy host is no reason to stop a change that has begun.
      const isLate = error instanceof HostError && error.code === 'TIME_LIMIT_REACHED';
      if (!isLate || tries === READ_TRIES) throw error;
    }
}

/**
 * The steps that are applied, when the sessions of the call before have ended.
 * @param steps null: those of the call are not known
 */
async function settledSteps(
  applier: Applier,
  { change_id, done, xid, alone }: ChangeRecord,
  main: Main,
  steps: readonly Step[] | null,
): Promise<number> {
  const { platform } = applier;
  let settled = done;
  if (xid !== null && (await isCommitted(platform, xid))) settled += 1;
  else if (alone !== null && (await ranAlone(applier, main, alone, steps?.[done]))) settled += 1;
  await recordDone(platform, change_id, settled);
  return settled;
}

/**
 * Decides whether an interrupted step without a transaction has taken effect. An invalid index that it has left is dropped.
 * @param step whose `schema` is that after the step on the clone; undefined: not known, so any other schema will do
 */
async function ranAlone(
  applier: Applier,
  main: Main,
  alone: NonNullable<ChangeRecord['alone']>,
  step: Step | undefined,
): Promise<boolean> {
  await dropInvalid(applier, main.database, alone.invalid);
  const schema = await schemaOf(applier, main);
  return schema !== alone.schema && (step === undefined || schema === step.schema);
}

interface Stop {
  reason: StopReason;
  error: AppliedChange['error'];
  /** Another attempt can get past it. */
  passes: boolean;
}

async function applyStep(
  applier: Applier,
  params: Applying,
  { at, signal }: { at: number; signal: AbortSignal },
): Promise<{ attempts: number; stop: Stop | null }> {
  const step = params.steps[at];
  if (!step) throw new Error(`the change has no step ${at}`);
  const before = params.steps.slice(0, at);
  for (let attempts = 1; ; attempts += 1) {
    const began = performance.now();
    try {
      await attemptStep(applier, params, { step, before });
      await recordDone(applier.platform, params.change_id, at + 1);
      return { attempts, stop: null };
    } catch (error) {
      if (await tookEffect(applier, params, at)) return { attempts, stop: null };
      const stop = stopFor(error, { step, before, params, ms: performance.now() - began });
      if (!stop.passes || attempts >= params.attempts || signal.aborted) return { attempts, stop };
      await sleep(backoff(attempts - 1, { ...PAUSE, random: Math.random() }), undefined, { signal }).catch(
        () => {},
      );
    }
  }
}

/** True if a step that ended with an error was applied: its session may have been lost after the commit. */
async function tookEffect(applier: Applier, params: Applying, at: number): Promise<boolean> {
  const { platform } = applier;
  const known = await readRecord(platform, params.change_id);
  if (!known) return false;
  if (known.xid !== null || known.alone !== null) await endLeft(platform, known);
  return (await settledSteps(applier, known, params, params.steps)) > at;
}

/** @throws what says nothing about the statement: the gateway repeats the call */
function stopFor(
  error: unknown,
  { step, before, params, ms }: { step: Step; before: readonly Step[]; params: Applying; ms: number },
): Stop {
  const { at, cause } = error instanceof StatementError ? error : { at: 0, cause: error };
  const state = sqlState(cause);
  const message = (cause instanceof Error ? cause.message : String(cause)).slice(0, MESSAGE_MAX);
  const stop = (reason: StopReason, passes: boolean): Stop => ({
    reason,
    error: { statement: placeOf(before, at), sqlstate: state ?? null, message },
    passes,
  });
  const { budget_ms: budget } = params;
  if (WAITS.includes(state)) return stop('lock_timeout', true);
  const isOver = step.is_bounded && budget !== null && ms >= budget;
  // Without a budget, somebody has cancelled it.
  if (TIMED_OUT.includes(state)) return stop(isOver ? 'over_budget' : 'interrupted', false);
  if (!(error instanceof StatementError)) throw error;
  if (cause instanceof Error && 'severity' in cause && cause.severity === 'ERROR')
    return stop('refused', false);
  const failure = asHostError(cause);
  // The session was ended, by a watchdog or by its user. If the server is away, the next attempt says so.
  if (failure instanceof HostError && failure.code === 'POSTGRES_UNAVAILABLE')
    return stop('interrupted', true);
  throw cause;
}

async function attemptStep(
  applier: Applier,
  { change_id, database, project_id, lock_timeout_ms, budget_ms, ...main }: Applying,
  { step, before }: { step: Step; before: readonly Step[] },
): Promise<void> {
  const { host, platform, login } = applier;
  const isBounded = step.is_bounded && budget_ms !== null;
  const limits = {
    // Only other changes of the schema queue behind a step that is not bounded and runs alone.
    lock: step.alone && !step.is_bounded ? 0 : lock_timeout_ms,
    statement: isBounded ? budget_ms : 0,
    transaction: isBounded ? budget_ms + RECORD_WITHIN_MS : 0,
  };
  const owner = { user: login.name, database, project_id };
  const session = await openChangeSession(host, owner, { statement_timeout: 0, transaction_timeout: 0 });
  try {
    await repeatSettings(session, before);
    if (step.alone) {
      const schema = await schemaOf(applier, { ...main, database, project_id });
      await recordAlone(platform, change_id, { schema, invalid: await readInvalid(session) });
    }
    await runStep(session, step, limits, async () => {
      const { rows } = await session.query<{ xid: string }>(
        'SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text AS xid',
      );
      await recordCommit(platform, change_id, rows[0]?.xid ?? '');
    });
  } finally {
    await session.end().catch(() => breakOff(session));
  }
}

const INVALID = 'SELECT indexrelid::text AS oid FROM pg_catalog.pg_index WHERE NOT indisvalid';

const readInvalid = async (session: Session): Promise<string[]> =>
  (await session.query<{ oid: string }>(INVALID)).rows.map(({ oid }) => oid);

/** Drops the invalid indexes that were not there before, as their owner. */
async function dropInvalid(
  { host, login: { name: user, project_id } }: Applier,
  database: string,
  known: readonly string[],
): Promise<void> {
  const options = { statement_timeout: CLEAN_WITHIN_MS, search_path: 'pg_catalog,pg_temp' };
  const session: OwnSession = await openChangeSession(host, { user, database, project_id }, options);
  try {
    const { rows } = await session.query<{ name: string }>(
      `SELECT indexrelid::regclass::text AS name FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
       WHERE NOT indisvalid AND relkind = 'i' AND NOT relispartition AND indexrelid::text <> ALL ($1)`,
      [known],
    );
    for (const { name } of rows)
      await runStatement(session, `DROP INDEX CONCURRENTLY ${name}`, [], () => true, { untilFull: false });
  } finally {
    await session.end().catch(() => breakOff(session));
  }
}

/**
 * Ends a call that the gateway has abandoned, and what the call has left.
 * @throws HostError HOST_BUSY while a statement runs that does not end
 */
export async function settleChange(
  host: ChangeHost,
  params: Params<'change.settle'>,
): Promise<MethodResult<'change.settle'>> {
  const { change_id, done } = params;
  RUNNING.get(change_id)?.stop.abort();
  const abandoned = await readRecord(host.postgres, change_id);
  if (abandoned) await endLeft(host.postgres, abandoned);
  return withLocks(host.sessions, [`change:${params.branch_id}`], async (platform) => {
    const known = await readRecord(platform, change_id);
    if (known) await removeLeft(platform, known);
    return asChange(host, platform, params, async (login) => {
      const applier = { host, platform, login };
      const settled = known ? await settledSteps(applier, known, params, null) : done;
      return { done: Math.max(done, settled), schema: await schemaOf(applier, params) };
    });
  });
}
