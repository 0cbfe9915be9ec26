import { randomUUID } from 'node:crypto';
import { SNAPSHOT_DATABASE, snapshotIdOf } from '../../shared/branch/database-name.ts';
import { groupName } from '../../shared/branch/login.ts';
import type { ChangeStep, RehearsedStep } from '../../shared/protocol/change-operations.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { createClone } from '../cloning/create-clone.ts';
import { changedObjects, digestSchema } from '../difference/schema/compare-schemas.ts';
import {
  type ComparisonLogin,
  inComparison,
  readAsLogin,
  withComparisonLogin,
} from '../difference/schema/comparison-login.ts';
import type { ProofHost } from '../difference/schema/prove-statements.ts';
import { copyBranchSettings } from '../postgres/branch-settings.ts';
import { backendPid, breakOff, identifier, inTransaction, type Session } from '../postgres/connect.ts';
import { dropDatabase, protectWork } from '../postgres/databases.ts';
import { releaseLock, takeLock, withLocks } from '../postgres/locks.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';
import { ProjectGate } from '../process/project-gate.ts';
import { NO_SAMPLES } from '../rehearsal/lock-record.ts';
import { readWrittenWal, reportOf } from '../rehearsal/report.ts';
import { type WatchedTables, watchIn } from '../rehearsal/watched-tables.ts';
import { openChangeSession } from '../rows/branch-session.ts';
import { rehearsedDatabaseName } from '../snapshots/snapshot-databases.ts';
import { readForecast } from './forecast.ts';
import type { SchemaReadings } from './schema-readings.ts';
import { NO_LIMITS, repeatSettings, runStep, StatementError } from './step.ts';

/** A change is tried on a clone of `main`, in the sessions and steps in which it is applied later. */

export interface ChangeHost extends ProofHost {
  changes: ProjectGate;
  readings: SchemaReadings;
}

/** Rehearsals and applications: each holds a session of the agent. */
export const openChangeGate = () => new ProjectGate({ ofProject: 2, ofHost: 5, noun: 'change' });

type Rehearsing = Params<'change.rehearse'>;
type Rehearsed = MethodResult<'change.rehearse'>;

/** Statements of a rehearsal take no longer together. Milliseconds. */
const WITHIN_MS = 600_000;
const READ_WITHIN_MS = 20_000;
/** A clone of the source that another operation makes is waited for. */
const LOOK_EVERY_MS = 50;
/** Locks that are reported: of a step, and of all steps together, but for one of each. */
const LOCKS_MAX = { ofStep: 20, ofAll: 1_000 };
const LIMITS = { lock_ms: 1_000, table_bytes: 100 * 2 ** 20 };

/** Modes that block writers, from the strongest. */
const STRONG_MODES = ['AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock'] as const;

/** Ends the reading of a schema. */
export const readingSignal = () => AbortSignal.timeout(READ_WITHIN_MS);

/**
 * Runs the steps on a clone, and says what they did. An error of a statement is a result.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_BUSY, SOURCE_MISSING, TIME_LIMIT_REACHED
 */
export async function rehearseChange(
  host: ChangeHost,
  params: Rehearsing,
  onProgress?: OnProgress,
): Promise<Rehearsed> {
  const leave = host.changes.enter(params.project_id);
  try {
    return await withLocks(host.sessions, [], (platform) => inClone(host, platform, params, onProgress));
  } finally {
    leave();
  }
}

async function inClone(
  host: ChangeHost,
  platform: Session,
  params: Rehearsing,
  onProgress?: OnProgress,
): Promise<Rehearsed> {
  const { project_id, source, busy_wait } = params;
  const id = randomUUID();
  const database = rehearsedDatabaseName(id);
  // The removal of leftovers takes this lock.
  await takeLock(platform, `clone:${id}`);
  const held = SNAPSHOT_DATABASE.test(source)
    ? (`clone:${snapshotIdOf(source)}` as const)
    : (`source:${source}` as const);
  try {
    await takeLock(platform, held);
    const { paused_ms } = await createClone(host, platform, { name: database, source, busy_wait });
    await releaseLock(platform, held);
    await openClone(host, platform, params, database);
    const rehearsed = await withComparisonLogin(
      host,
      project_id,
      [database],
      (login) =>
        host.excesses.during(database, 'a statement of the change', () =>
          rehearseIn(host, login, params, database, onProgress),
        ),
      WITHIN_MS / 60_000 + 5,
    );
    return { ...rehearsed, paused_ms };
  } finally {
    await dropDatabase(platform, database);
  }
}

async function openClone(
  { settings }: ChangeHost,
  platform: Session,
  { project_id, branch_id }: Rehearsing,
  database: string,
): Promise<void> {
  const owners = identifier(groupName(project_id, 'owner'));
  await inTransaction(platform, async () => {
    await platform.query(
      `${protectWork(settings, database, { project_id })};
       GRANT CREATE, TEMPORARY ON DATABASE ${identifier(database)} TO ${owners}`,
    );
    await copyBranchSettings(platform, branch_id, database);
  });
}

async function rehearseIn(
  host: ChangeHost,
  login: ComparisonLogin,
  { project_id, branch_id, database: main, steps }: Rehearsing,
  database: string,
  onProgress?: OnProgress,
): Promise<Omit<Rehearsed, 'paused_ms'>> {
  const until = performance.now() + WITHIN_MS;
  const clone = { branch_id, database };
  const digest = () => digestSchema(host, project_id, clone, readingSignal());
  const watch = () => readAsLogin(host, login, database, READ_WITHIN_MS, watchIn);
  const schema_before = await digest();
  const before = await watch();
  const { rows } = await host.postgres.query<{ lsn: string }>('SELECT pg_current_wal_insert_lsn() AS lsn');
  const run = await runSteps(host, login, database, { steps, until, digest, onProgress });
  const wal = await readWrittenWal(host, rows[0]?.lsn ?? '0/0', database);
  const after = await watch();
  const sides = { before: { branch_id, database: main }, after: clone };
  const changes = await changedObjects(host, project_id, sides, readingSignal());
  const report = reportFrom(before, after, run.longest, wal);
  return {
    error: run.error,
    schema_before,
    schema_after: await digest(),
    steps: run.steps,
    report: { ...report, changes },
    // A clone has the object ids of `main`.
    forecast: await readForecast(host.postgres, project_id, [...run.strongest.values()]),
  };
}

const UNCOMPARED = {
  changes: [],
  statements: [],
  not_modelled: [],
  schema_proven: false,
  unproven_reason: null,
};

function reportFrom(
  before: WatchedTables,
  after: WatchedTables,
  longest: Record<string, number>,
  wal: Rehearsed['report']['wal'],
) {
  const locks = { ...NO_SAMPLES, longest };
  const {
    schema: _,
    samples: __,
    longest_gap_ms: ___,
    ...report
  } = reportOf({
    limits: LIMITS,
    before,
    after,
    locks,
    wal,
    schema: UNCOMPARED,
  });
  return report;
}

interface Run {
  steps: RehearsedStep[];
  error: Rehearsed['error'];
  /** Milliseconds by `relation mode`. */
  longest: Record<string, number>;
  /** The strongest lock on each object. */
  strongest: Map<string, HeldLock>;
}

async function runSteps(
  host: ChangeHost,
  login: ComparisonLogin,
  database: string,
  {
    steps,
    until,
    digest,
    onProgress,
  }: {
    steps: readonly ChangeStep[];
    until: number;
    digest: () => Promise<string>;
    onProgress?: OnProgress | undefined;
  },
): Promise<Run> {
  const run: Run = { steps: [], error: null, longest: {}, strongest: new Map() };
  const locksMax = Math.max(1, Math.min(LOCKS_MAX.ofStep, Math.floor(LOCKS_MAX.ofAll / steps.length)));
  const options = { statement_timeout: 0, transaction_timeout: 0 };
  return inComparison(
    host,
    login,
    database,
    { within: WITHIN_MS + READ_WITHIN_MS, options },
    async (observer) => {
      for (const [at, step] of steps.entries()) {
        const left = Math.floor(until - performance.now());
        if (left <= 0) throw tooLong();
        try {
          const tried = await tryStep(host, login, database, {
            step,
            before: steps.slice(0, at),
            observer,
            left,
          });
          for (const lock of tried.held) {
            const key = `${lock.oid} ${lock.mode}`;
            run.longest[key] = Math.max(run.longest[key] ?? 0, Math.round(tried.ms));
            const known = run.strongest.get(lock.oid);
            if (!known || strengthOf(lock) < strengthOf(known)) run.strongest.set(lock.oid, lock);
          }
          run.steps.push({
            duration_ms: tried.ms,
            locks: tried.held.slice(0, locksMax).map(({ schema, name, mode }) => ({ schema, name, mode })),
            schema: step.alone ? await digest() : null,
          });
        } catch (error) {
          if (!(error instanceof StatementError)) throw error;
          run.error = errorOf(steps.slice(0, at), error, until);
          return run;
        }
        onProgress?.((at + 1) / steps.length);
      }
      return run;
    },
  );
}

const tooLong = () =>
  new HostError('TIME_LIMIT_REACHED', `the change takes longer than ${WITHIN_MS / 60_000} minutes`);

/** SQLSTATEs of a limit of time. */
const TIMED_OUT: readonly (string | undefined)[] = ['57014', '25P04'];

/** The place of a statement among those of all steps, from 1. */
export const placeOf = (before: readonly ChangeStep[], at: number): number =>
  before.reduce((sum, { statements }) => sum + statements.length, 0) + at + 1;

/** @throws what says nothing about the statement */
function errorOf(
  before: readonly ChangeStep[],
  { at, cause }: StatementError,
  until: number,
): NonNullable<Rehearsed['error']> {
  const state = sqlState(cause);
  if (TIMED_OUT.includes(state) && performance.now() >= until - READ_WITHIN_MS / 10) throw tooLong();
  if (asHostError(cause) instanceof HostError && !(cause instanceof HostError)) throw cause;
  const message = cause instanceof Error ? cause.message : String(cause);
  return { statement: placeOf(before, at), sqlstate: state ?? null, message: message.slice(0, MESSAGE_MAX) };
}

/** Characters. Code of a tenant can raise an error of any length. */
export const MESSAGE_MAX = 2_000;

interface HeldLock {
  oid: string;
  schema: string;
  name: string;
  mode: string;
}

async function tryStep(
  host: ChangeHost,
  { name: user, project_id }: ComparisonLogin,
  database: string,
  {
    step,
    before,
    observer,
    left,
  }: { step: ChangeStep; before: readonly ChangeStep[]; observer: Session; left: number },
): Promise<{ ms: number; held: HeldLock[] }> {
  const session = await openChangeSession(host, { user, database, project_id }, { statement_timeout: left });
  try {
    await repeatSettings(session, before);
    const held = new Map<string, HeldLock>();
    const look = async () => {
      for (const lock of await readHeld(observer, backendPid(session)))
        held.set(`${lock.oid} ${lock.mode}`, lock);
    };
    const began = performance.now();
    // A transaction has all its locks at its end. A statement that runs alone has several transactions.
    const watching = step.alone ? setInterval(() => look().catch(() => {}), LOOK_EVERY_MS) : undefined;
    let ms = 0;
    const measured = () => {
      ms = performance.now() - began;
    };
    try {
      await runStep(
        session,
        step,
        { ...NO_LIMITS, statement: left, transaction: step.alone ? 0 : left },
        () => {
          measured();
          return look();
        },
      );
      if (step.alone) measured();
    } finally {
      clearInterval(watching);
    }
    return { ms, held: [...held.values()].toSorted((one, other) => strengthOf(one) - strengthOf(other)) };
  } finally {
    await session.end().catch(() => breakOff(session));
  }
}

/** The place of a mode, from the strongest. */
const strengthOf = ({ mode }: HeldLock): number =>
  STRONG_MODES.indexOf(mode as (typeof STRONG_MODES)[number]);

/** An object that the step itself has made is not visible here yet: nobody waits for its locks. */
const HELD = `
  SELECT c.oid::text, nspname AS schema, relname AS name, mode
  FROM pg_lock_status() AS held JOIN pg_class AS c ON c.oid = held.relation JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE held.pid = $1 AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND granted AND mode = ANY ($2) AND c.oid >= 16384 AND nspname <> 'pg_toast'`;

const readHeld = async (observer: Session, pid: number): Promise<HeldLock[]> =>
  (await observer.query<HeldLock>(HELD, [pid, [...STRONG_MODES]])).rows;
