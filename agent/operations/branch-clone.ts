import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName } from '../../shared/branch/login.ts';
import type { Params, Result } from '../../shared/protocol/operations.ts';
import { type BranchIdentity, claimBranch, nameHeld } from '../cloning/claim-branch.ts';
import { type OnProgress, watchCopy } from '../cloning/clone-progress.ts';
import { cloneLive } from '../cloning/live-source.ts';
import type { CloneMethod, Host } from '../host.ts';
import { identifier, inDatabase, inTransaction, type Session } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { takeLock, withLocks } from '../postgres/locks.ts';
import { ensureGroups } from '../postgres/roles.ts';
import { HostError } from '../servers/host-error.ts';

type CloneResult = Result<'branch.clone'>;
type Strategy = NonNullable<CloneResult['strategy']>;

/** Ways to run `CREATE DATABASE`, by the name the result gives them. */
const STRATEGIES: Record<Strategy, { strategy: string; fileCopyMethod: string }> = {
  reflink: { strategy: 'FILE_COPY', fileCopyMethod: 'clone' },
  file_copy: { strategy: 'FILE_COPY', fileCopyMethod: 'copy' },
  wal_log: { strategy: 'WAL_LOG', fileCopyMethod: 'copy' },
};

/** Up to here the two checkpoints of a copy by files cost the neighbours more than logging every block. */
const WAL_LOG_UP_TO_BYTES = 48 * 1024 * 1024;

const EMPTY_TEMPLATE = 'template0';

const ADOPTED: CloneResult = { created: false, strategy: null, clone_ms: 0, paused_ms: 0, source_bytes: 0 };

function strategyFor(method: CloneMethod, sourceBytes: number): Strategy {
  if (method === 'reflink') return 'reflink';
  return sourceBytes <= WAL_LOG_UP_TO_BYTES ? 'wal_log' : 'file_copy';
}

/**
 * Makes the branch's database under a name that no tenant can reach. One that an earlier call made is
 * adopted, also when that call's agent did not live to see it finished.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, DATABASE_NAME_HELD, INVALID_CALL, POOLER_UNAVAILABLE
 */
export function cloneBranch(
  host: Host,
  params: Params<'branch.clone'>,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const { project_id, branch_id, job_id, source } = params;
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    await claimBranch(session, params);
    // The groups of a source are there, and `prepare` holds them locked for a while.
    if (source === null) await inTransaction(session, () => ensureGroups(session, project_id));
    else await takeLock(session, `source:${source}`);
    const progress = await progressOf(session, params);
    if (progress === 'published') return ADOPTED;
    const result = progress === 'built' ? ADOPTED : await makeClone(host, session, params, onProgress);
    // After an adoption too: the agent that made it may have died before this.
    if (source === null) await openToGroups(host, buildDatabaseName(job_id), project_id);
    return result;
  });
}

/** How far earlier calls came. A database that a crash left half-dropped is dropped on the way. */
async function progressOf(
  session: Session,
  { job_id, branch_id, database }: BranchIdentity,
): Promise<'nothing' | 'built' | 'published'> {
  const build = buildDatabaseName(job_id);
  const found = await readDatabases(session, [build, database]);
  const published = found.find(({ name }) => name === database);
  if (published?.mark?.branch_id === branch_id) return 'published';
  if (published) throw nameHeld(database);
  if (found.length === 0) return 'nothing';
  if (!found.some(({ interrupted }) => interrupted)) return 'built';
  await dropDatabase(session, build);
  return 'nothing';
}

async function makeClone(
  host: Host,
  session: Session,
  { job_id, source, busy_wait: busyWait }: Params<'branch.clone'>,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const template = source ?? EMPTY_TEMPLATE;
  const { sourceBytes, inUse } = await lookAt(session, template);
  const strategy = strategyFor(host.cloneMethod, sourceBytes);
  const how = STRATEGIES[strategy];
  await session.query(`SET file_copy_method = ${how.fileCopyMethod}`);
  let cloneMs = 0;
  const create = async () => {
    const stopWatching = await watchCopy(host.settings.PGDATA_DIR, sourceBytes, onProgress);
    const started = performance.now();
    await session
      .query(
        `CREATE DATABASE ${identifier(buildDatabaseName(job_id))} TEMPLATE ${identifier(template)}
         STRATEGY ${how.strategy} CONNECTION LIMIT 0`,
      )
      .finally(stopWatching);
    cloneMs = performance.now() - started;
  };
  let pausedMs = 0;
  if (source === null) {
    await create();
  } else {
    // What is written now is not left for the checkpoint inside CREATE DATABASE, while clients are held.
    if (inUse && strategy !== 'wal_log') await session.query('CHECKPOINT');
    // A login is waited for by the pooler for some seconds only: a long copy holds its clients from the start.
    const hold = inUse || strategy === 'file_copy';
    pausedMs = await cloneLive(host, session, { source, hold, busyWait, create });
  }
  return { created: true, strategy, clone_ms: cloneMs, paused_ms: pausedMs, source_bytes: sourceBytes };
}

/** Size of a database, and whether anybody is in it. @throws HostError SOURCE_MISSING */
async function lookAt(session: Session, database: string) {
  const { rows } = await session.query<{ bytes: string; in_use: boolean }>(
    `SELECT pg_database_size(oid) AS bytes,
            EXISTS (SELECT FROM pg_stat_activity WHERE datid = oid AND backend_type = 'client backend') AS in_use
     FROM pg_database WHERE datname = $1`,
    [database],
  );
  if (!rows[0]) throw new HostError('SOURCE_MISSING', `there is no database ${database}`);
  return { sourceBytes: Number(rows[0].bytes), inUse: rows[0].in_use };
}

/** Functions that write large objects. Everybody may by default, read-only logins and write-blocked ones too. */
const LARGE_OBJECT_WRITERS = [
  'lo_creat(integer)',
  'lo_create(oid)',
  'lo_from_bytea(oid, bytea)',
  'lo_put(oid, bigint, bytea)',
  'lowrite(integer, bytea)',
  'lo_truncate(integer, integer)',
  'lo_truncate64(integer, bigint)',
]
  .map((name) => `pg_catalog.${name}`)
  .join(', ');

/**
 * Gives a fresh `main` to its project's groups: what the owner makes there is open to the others, and every
 * clone inherits that without a statement per object. No tenant has run code in this database yet; in any
 * other, the superuser runs nothing.
 */
const openToGroups = (host: Host, database: string, projectId: string) => {
  const owner = identifier(groupName(projectId, 'owner'));
  const readWrite = identifier(groupName(projectId, 'read_write'));
  const readOnly = identifier(groupName(projectId, 'read_only'));
  const byDefault = `ALTER DEFAULT PRIVILEGES FOR ROLE ${owner}`;
  return inDatabase(host.settings, database, (session) =>
    session.query(
      `ALTER SCHEMA public OWNER TO ${owner};
       REVOKE ALL ON SCHEMA public FROM PUBLIC;
       GRANT USAGE ON SCHEMA public TO ${readWrite}, ${readOnly};
       REVOKE EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} FROM PUBLIC;
       GRANT EXECUTE ON FUNCTION ${LARGE_OBJECT_WRITERS} TO ${owner}, ${readWrite};
       ${byDefault} GRANT USAGE ON SCHEMAS TO ${readWrite}, ${readOnly};
       ${byDefault} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO ${readWrite};
       ${byDefault} GRANT SELECT ON TABLES TO ${readOnly};
       ${byDefault} GRANT SELECT, USAGE, UPDATE ON SEQUENCES TO ${readWrite};
       ${byDefault} GRANT SELECT ON SEQUENCES TO ${readOnly}`,
    ),
  );
};
