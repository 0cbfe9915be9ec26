import { randomUUID } from 'node:crypto';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import type { ArchiveEntry } from '../dump/archive.ts';
import { planRestore, type RestorePlan, restoreEntries } from '../dump/restore.ts';
import { identifier, inDatabase, type Pool, type Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { grantGroups } from '../privileges/default-privileges.ts';
import { openLoadSession, type RowsHost } from '../rows/branch-session.ts';
import { refusedSchema } from './copy-rows.ts';
import type { LeftAlone } from './left-alone.ts';
import { endLoadSessions, loadDatabaseName, loadLoginName, openToLoad, removeLoad } from './load-database.ts';
import { finding, Refused, type Source, short } from './source-address.ts';
import {
  dumpWanted,
  leftOutFindings,
  readSchemaFacts,
  readUnsafeCode,
  type SchemaFacts,
  type UnsafeCode,
} from './source-schema.ts';
import { inSource } from './source-session.ts';

/**
 * Makes the schema of a source in an empty database that nobody else can reach, before `main` is closed for its copy:
 * everything that PostgreSQL refuses here is known then.
 */

export interface TrialHost extends RowsHost {
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
}

interface Trial {
  project_id: string;
  use: 'import' | 'follow';
  source: Source;
  /** Chosen tables; null: all. */
  tables: [schema: string, name: string][] | null;
  leftAlone: LeftAlone;
}

const FACTS_WITHIN_MS = 10_000;
const DUMP_WITHIN_MS = 30_000;
const RESTORE_WITHIN_MS = 30_000;
/** An empty schema takes some megabytes. What a source defines could write more. */
const SIZE_MAX = 256 * 2 ** 20;
const WATCH_EVERY_MS = 250;
const TEMPORARY_MB = 64;

/** @returns what the copy would refuse or leave out. @throws HostError HOST_FULL, POSTGRES_UNAVAILABLE */
export async function trySchema(
  host: TrialHost,
  { project_id, use, source, tables, leftAlone }: Trial,
): Promise<SourceFinding[]> {
  const read = await inSource(host.settings, source, { within: FACTS_WITHIN_MS }, async ({ session }) => {
    const facts = await readSchemaFacts(session);
    return { facts, unsafe: await readUnsafeCode(session, facts, use) };
  });
  if (!read.ok) return [read.failure];
  const { facts, unsafe } = read.value;
  try {
    const wanted = { project_id, tables, leftAlone, within: DUMP_WITHIN_MS };
    const { archive, choice, extensions } = await dumpWanted(host, source, facts, wanted);
    const plan = planRestore(archive, choice);
    const refusals = await inTrialDatabase(host, { project_id, extensions }, (session) =>
      restoreAll(session, plan, facts),
    );
    return [...refusals, ...leftOutFindings(plan, facts), ...unsafe.map(unsafeFinding)];
  } catch (error) {
    if (error instanceof Refused) return [error.finding];
    throw error;
  }
}

async function inTrialDatabase(
  host: TrialHost,
  { project_id, extensions }: { project_id: string; extensions: readonly string[] },
  action: (session: Session) => Promise<SourceFinding[]>,
): Promise<SourceFinding[]> {
  const job_id = randomUUID();
  const database = loadDatabaseName(job_id);
  return withLocks(host.sessions, [`clone:${job_id}`], async (own) => {
    try {
      await own.query(`CREATE DATABASE ${identifier(database)} TEMPLATE template0 STRATEGY wal_log`);
      await inDatabase(host.settings, database, (empty) => grantGroups(empty, project_id, extensions));
      await openToLoad(own, host.settings, { job_id, project_id }, TEMPORARY_MB);
      const session = await openLoadSession(host, { user: loadLoginName(job_id), database, project_id });
      try {
        return await watched(host, job_id, () => action(session));
      } finally {
        await session.end().catch(() => {});
      }
    } finally {
      await removeLoad(own, { job_id });
    }
  });
}

const TOO_MUCH = finding(
  'schema',
  'The schema of the source could not be tried here, because it takes too long or too much room without any row. What PostgreSQL refuses of it is only known while it is copied.',
  { severity: 'warning' },
);

/** A definition can run any code of its owner. */
async function watched(
  { postgres }: TrialHost,
  job_id: string,
  action: () => Promise<SourceFinding[]>,
): Promise<SourceFinding[]> {
  const deadline = performance.now() + RESTORE_WITHIN_MS;
  let isEnded = false;
  const look = async () => {
    const { rows } = await postgres.query<{ bytes: number | null }>(
      'SELECT pg_database_size(oid)::float8 AS bytes FROM pg_database WHERE datname = $1',
      [loadDatabaseName(job_id)],
    );
    if (performance.now() < deadline && (rows[0]?.bytes ?? 0) < SIZE_MAX) return;
    isEnded = true;
    await endLoadSessions(postgres, { job_id });
  };
  const timer = setInterval(() => look().catch(() => {}), WATCH_EVERY_MS);
  try {
    return await action();
  } catch (error) {
    if (isEnded) return [TOO_MUCH];
    throw error;
  } finally {
    clearInterval(timer);
  }
}

async function restoreAll(
  session: Session,
  plan: RestorePlan,
  { searchPath }: SchemaFacts,
): Promise<SourceFinding[]> {
  const parts: [entries: readonly ArchiveEntry[], path: string][] = [
    [plan.first, ''],
    [[...plan.indexes.flat(), ...plan.last, ...plan.policies], searchPath],
  ];
  const found: SourceFinding[] = [];
  for (const [entries, path] of parts)
    for (const one of await restoreEntries(session, entries, { searchPath: path, goesOn: true }))
      found.push(findingOf(refusedSchema(one)));
  return found;
}

function findingOf(error: unknown): SourceFinding {
  if (error instanceof Refused) return error.finding;
  throw error;
}

/** Since version 17 PostgreSQL builds indexes and views without the schemas of the clients, and applies changes so in each. */
const unsafeFinding = ({ used_by, function: name, statement }: UnsafeCode): SourceFinding =>
  finding(
    'schema',
    `${short(name)}, which ${short(used_by)} uses, may name objects without their schemas, which PostgreSQL does not find while it builds indexes and materialized views, or applies changes.`,
    { severity: 'warning', object: short(name), statement: short(statement) },
  );
