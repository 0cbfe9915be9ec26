import { randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { isMainDatabase } from '../../shared/branch/database-name.ts';
import { groupName } from '../../shared/branch/login.ts';
import { Moment } from '../../shared/moment.ts';
import { DRILL_EVERY_MS, DRILL_OVERDUE_MS, DrillReport } from '../../shared/protocol/recovery-drill.ts';
import { type ComparisonHost, inSnapshotOf, type Side } from '../difference/sides.ts';
import { identifier } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { TroubleLog } from '../process/log.ts';
import { repeat } from '../process/loops.ts';
import { loadDatabaseName, removeLoad } from '../transfer/load-database.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { readBaseCopies } from './base-copies.ts';
import { CLOCK } from './clock.ts';
import { type PastFolders, pastFolders } from './folders.ts';
import { NotRecoverable, type RecoveryHost, recoverTo, ServerFailed, Unsuitable } from './recover.ts';
import { chooseTables, isAsRecorded, readSample, Sample, steadyPart } from './samples.ts';

/**
 * Drills: once an hour the host writes down what some tables of `main` have, and once a week it recovers a project to one of
 * these times and compares. A drill counts in no limit, and ends when a user wants to recover.
 */

type DrillHost = RecoveryHost & ComparisonHost;

const HOUR_MS = 3_600_000;
const MB = 2 ** 20;
const LOOK_EVERY_MS = 60_000;
/** A report can get lost. */
const REPEATED_AFTER_MS = 6 * HOUR_MS;
/** A commit that is in the WAL can be seen after this time. */
const SETTLED_AFTER_MS = 1_000;
const SAMPLED_WITHIN_MS = 20_000;
const COMPARED_WITHIN_MS = 300_000;
/** A drill has no quota; the room of the disk is looked at before. */
const ROOM_BYTES = 2 ** 50;
const DRILLS_KEPT = 10;

const Recorded = z.strictObject({
  at: Moment,
  /** Position of the WAL. */
  position: z.string(),
  /** The base copy from which the time is recovered. */
  base: z.string(),
  samples: z.array(Sample),
});
type Recorded = z.output<typeof Recorded>;

/** Records and results of the drills of a project, in a file of its own. */
const Drilled = z.strictObject({
  /** When the first record was tried. */
  since: Moment,
  tried_at: Moment,
  records: z.array(Recorded),
  reports: z.array(DrillReport),
  /** A drill that runs, or was killed. */
  running: z.uuid().nullable(),
});
type Drilled = z.output<typeof Drilled>;

/** The `main` of a project. */
interface Main {
  project_id: string;
  branch_id: string;
  database: string;
}

/** The state of all drills, for `doctor` and the metrics. */
export interface DrillState {
  /** Projects whose last drill has failed. */
  failing: number;
  /** Projects without a drill that has passed within two weeks. */
  overdue: number;
}

const fileOf = ({ drills }: PastFolders, projectId: string) => join(drills, `${projectId}.json`);

async function readDrilled(folders: PastFolders, projectId: string): Promise<Drilled | null> {
  const text = await readFile(fileOf(folders, projectId), 'utf8').catch(() => null);
  if (text === null) return null;
  const read = Drilled.safeParse(JSON.parse(text));
  return read.success ? read.data : null;
}

async function writeDrilled(folders: PastFolders, projectId: string, drilled: Drilled): Promise<void> {
  const file = fileOf(folders, projectId);
  await mkdir(folders.drills, { recursive: true, mode: 0o700 });
  await writeFile(`${file}.new`, JSON.stringify(drilled), { mode: 0o600, flush: true });
  await rename(`${file}.new`, file);
}

async function readMains({ postgres }: Pick<DrillHost, 'postgres'>): Promise<Main[]> {
  const { rows } = await postgres.query<Main>(
    `SELECT project_id, branch_id, database FROM branch JOIN pg_database ON datname = database
     WHERE ${isMainDatabase('database')} AND datallowconn AND datconnlimit <> 0 ORDER BY database`,
  );
  return rows;
}

const lastOf = (drilled: Drilled | null) => drilled?.reports.at(-1) ?? null;

/** @returns milliseconds since the last drill that has passed, or since the first record */
function unprovenFor({ since, reports }: Drilled): number {
  const passed = reports.findLast(({ problem }) => problem === null);
  return Date.now() - Date.parse(passed?.drilled_at ?? since);
}

export async function readDrillState(
  host: Pick<DrillHost, 'postgres' | 'settings' | 'past'>,
): Promise<DrillState> {
  const state = { failing: 0, overdue: 0 };
  if (host.past.hours === 0) return state;
  const folders = pastFolders(host.settings);
  for (const { project_id } of await readMains(host)) {
    const drilled = await readDrilled(folders, project_id);
    if (!drilled) continue;
    if ((lastOf(drilled)?.problem ?? null) !== null) state.failing += 1;
    if (unprovenFor(drilled) > DRILL_OVERDUE_MS) state.overdue += 1;
  }
  return state;
}

/** Since when this host could run drills. */
export async function readDrillsSince({
  settings,
  past,
}: Pick<DrillHost, 'settings' | 'past'>): Promise<Date | null> {
  const folder = past.hours === 0 ? null : await stat(pastFolders(settings).drills).catch(() => null);
  return folder?.birthtime ?? null;
}

/**
 * Writes down what some tables have: what is the same in a snapshot before a position of the WAL and in one after it was so at
 * the position too. A database without tables is recovered all the same.
 * @param base the newest base copy
 */
async function takeRecord(host: DrillHost, { branch_id, database }: Main, base: string): Promise<Recorded> {
  const bounds = { within: SAMPLED_WITHIN_MS, firstRows: true };
  const side = { branch_id, database };
  const before = await inSnapshotOf(host, side, bounds, async (session) => {
    const found: { table: Awaited<ReturnType<typeof chooseTables>>[number]; sample: Sample }[] = [];
    for (const table of await chooseTables(session))
      found.push({ table, sample: await readSample(session, table) });
    return found;
  });
  await sleep(SETTLED_AFTER_MS);
  const { rows } = await host.postgres.query<{ at: string; position: string }>(
    `SELECT ${CLOCK} AS at, pg_current_wal_insert_lsn()::text AS position`,
  );
  const [place] = rows;
  if (!place) throw new Error('PostgreSQL did not answer');
  await sleep(SETTLED_AFTER_MS);
  const samples = await inSnapshotOf(host, side, bounds, async (session) => {
    const steady: Sample[] = [];
    for (const { table, sample } of before) {
      const part = steadyPart(sample, await readSample(session, table));
      if (part) steady.push(part);
    }
    return steady;
  });
  return { ...place, base, samples };
}

/** The records of the window. One whose base copy was dropped for want of room has no time of the window. */
async function recordsOfWindow(host: DrillHost, { records }: Pick<Drilled, 'records'>): Promise<Recorded[]> {
  const { hours } = host.past;
  const isShortened = await host.past.isShortened();
  const present = new Set((await readBaseCopies(pastFolders(host.settings))).map(({ name }) => name));
  const since = Date.now() - hours * HOUR_MS;
  return records.filter(({ at, base }) => Date.parse(at) >= since && (present.has(base) || !isShortened));
}

const momentNow = () => new Date().toISOString().replace('Z', '000Z');

/** Writes a record of the project, unless that was tried within the last hour. */
export async function keepRecords(host: DrillHost, main: Main): Promise<void> {
  const folders = pastFolders(host.settings);
  const now = momentNow();
  const known = await readDrilled(folders, main.project_id);
  if (known && Date.now() - Date.parse(known.tried_at) < HOUR_MS) return;
  const base = (await host.past.copies()).at(-1);
  if (!base) return;
  const drilled = known ?? { since: now, records: [], reports: [], running: null };
  const kept = { ...drilled, tried_at: now, records: await recordsOfWindow(host, drilled) };
  await writeDrilled(folders, main.project_id, kept);
  const record = await takeRecord(host, main, base.name);
  await writeDrilled(folders, main.project_id, { ...kept, records: [...kept.records, record] });
}

/** Compares the tables of the record with those of a recovered database. @returns whether all are as recorded */
async function compareWith(
  host: DrillHost,
  projectId: string,
  side: Side,
  { samples }: Recorded,
  signal: AbortSignal,
): Promise<boolean> {
  const bounds = { within: COMPARED_WITHIN_MS, firstRows: true, signal };
  return inSnapshotOf(host, side, bounds, async (session) => {
    await session.query(`SET ROLE ${identifier(groupName(projectId, 'owner'))}`);
    for (const recorded of samples) {
      const table = { ...recorded, isCounted: recorded.count !== null };
      const found = await readSample(session, table).catch((error) => {
        // The table is missing, or cannot be read: it was there at the time.
        if (signal.aborted) throw error;
        return null;
      });
      if (!found || !isAsRecorded(recorded, found)) return false;
    }
    return true;
  });
}

/** @returns null if the drill was ended for the recovery of a user */
async function problemOf(
  host: DrillHost,
  { project_id, branch_id }: Main,
  job_id: string,
  record: Recorded,
  signal: AbortSignal,
): Promise<{ problem: DrillReport['problem'] } | null> {
  const copies = await readBaseCopies(pastFolders(host.settings));
  if (!copies.some(({ name }) => name === record.base)) return { problem: 'base_copy_missing' };
  const { at, position } = record;
  const side = { branch_id: job_id, database: loadDatabaseName(job_id) };
  const target = { job_id, project_id, branch_id, at, position, room_bytes: ROOM_BYTES, jobs: 1 };
  return withLocks(host.sessions, [`clone:${job_id}`], async (session) => {
    try {
      const isSame = await recoverTo(host, session, target, { signal }, () =>
        compareWith(host, project_id, side, record, signal),
      );
      return { problem: isSame ? null : 'content_differs' };
    } catch (error) {
      if (signal.aborted) return null;
      host.log('past.drill_failed', { project_id, job_id, reason: String(error) });
      if (error instanceof NotRecoverable) return { problem: 'log_unreadable' };
      if (error instanceof ServerFailed || error instanceof Unsuitable) return { problem: 'not_copied' };
      throw error;
    } finally {
      await removeLoad(session, { job_id });
    }
  });
}

/**
 * Recovers the project to one of its recorded times, unless a user recovers, and stores the result.
 * @param random from 0 to 1
 * @returns null: there was no turn, no record or no room
 */
export async function drill(
  host: DrillHost,
  main: Main,
  random: () => number = Math.random,
): Promise<DrillReport | null> {
  const folders = pastFolders(host.settings);
  const drilled = await readDrilled(folders, main.project_id);
  if (!drilled) return null;
  const records = await recordsOfWindow(host, drilled);
  const record = records[Math.floor(random() * records.length)];
  if (!record || !(await hasRoom(host, main))) return null;
  const turn = host.past.turns.beginDrill();
  if (!turn) return null;
  const drill_id = randomUUID();
  const began = performance.now();
  const drilled_at = momentNow();
  try {
    await writeDrilled(folders, main.project_id, { ...drilled, records, running: drill_id });
    const ended = await problemOf(host, main, drill_id, record, turn.signal);
    const report = ended && {
      project_id: main.project_id,
      drill_id,
      drilled_at,
      at: record.at,
      duration_ms: Math.round(performance.now() - began),
      tables: record.samples.length,
      rows: record.samples.reduce((sum, { rows }) => sum + rows, 0),
      ...ended,
    };
    const reports = [...drilled.reports, ...(report ? [report] : [])].slice(-DRILLS_KEPT);
    await writeDrilled(folders, main.project_id, { ...drilled, records, reports, running: null });
    host.log('past.drilled', report ?? { project_id: main.project_id, yielded: true });
    return report;
  } finally {
    turn.end();
  }
}

async function hasRoom({ settings, postgres }: DrillHost, { database }: Main): Promise<boolean> {
  const { rows } = await postgres.query<{ size: string }>('SELECT pg_database_size($1)::text AS size', [
    database,
  ]);
  const free = await freeBytes(settings.PGDATA_DIR);
  return free > Number(rows[0]?.size ?? 0) + 2 * settings.MIN_FREE_DISK_MB * MB;
}

/** Drops what a killed drill has left, and what is known of projects that are gone. */
async function removeLeft(host: DrillHost): Promise<void> {
  const folders = pastFolders(host.settings);
  const { rows } = await host.postgres.query<{ project_id: string }>(
    'SELECT DISTINCT project_id FROM branch',
  );
  const present = new Set(rows.map(({ project_id }) => `${project_id}.json`));
  for (const name of await readdir(folders.drills).catch(() => [] as string[]))
    if (!present.has(name)) await rm(join(folders.drills, name), { force: true });
  for (const { project_id } of await readMains(host)) {
    const drilled = await readDrilled(folders, project_id);
    const job_id = drilled?.running;
    if (!drilled || !job_id) continue;
    await withLocks(host.sessions, [`clone:${job_id}`], (session) => removeLoad(session, { job_id }));
    await writeDrilled(folders, project_id, { ...drilled, running: null });
  }
}

/**
 * Writes records and drills until `signal`, one project after another.
 * @param report sends the last drill of a project, which the gateway may have already
 */
export async function runDrills(
  host: DrillHost,
  report: (report: DrillReport) => void,
  signal: AbortSignal,
): Promise<void> {
  if (host.past.hours === 0) return;
  const folders = pastFolders(host.settings);
  const troubles = new TroubleLog(host.log);
  let hasRemoved = false;
  /** When the last drill of each project was sent. */
  const sentAt = new Map<string, number>();
  const look = async () => {
    if (!hasRemoved) await removeLeft(host);
    hasRemoved = true;
    let due: { main: Main; since: number } | null = null;
    for (const main of await readMains(host)) {
      if (signal.aborted) return;
      const { project_id } = main;
      // One that is closed or locked is tried again in an hour.
      await keepRecords(host, main).catch((error) =>
        troubles.report('past.not_recorded', project_id, error, { project_id }),
      );
      const drilled = await readDrilled(folders, project_id);
      const last = lastOf(drilled);
      if (last && Date.now() - (sentAt.get(project_id) ?? 0) > REPEATED_AFTER_MS) {
        report(last);
        sentAt.set(project_id, Date.now());
      }
      const since = last ? Date.parse(last.drilled_at) : 0;
      const isDue = drilled !== null && drilled.records.length > 0 && Date.now() - since > DRILL_EVERY_MS;
      if (isDue && (due === null || since < due.since)) due = { main, since };
    }
    const done = due && (await drill(host, due.main));
    if (!done) return;
    report(done);
    sentAt.set(done.project_id, Date.now());
  };
  const attempt = () =>
    look().then(
      () => troubles.clear('look'),
      (error) => troubles.report('past.not_drilled', 'look', error),
    );
  await repeat(attempt, LOOK_EVERY_MS, signal);
}
