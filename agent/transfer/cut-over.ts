import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { fail, ok } from '../../shared/result.ts';
import { identifier, type Queryable, type Session } from '../postgres/connect.ts';
import { databasePrint } from '../postgres/database-print.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import {
  atSource,
  type CopiedTable,
  compareSample,
  countRows,
  listCompared,
  listTables,
  readSequences,
  setSequences,
  tableName,
} from './copy-rows.ts';
import { type FollowHost, inFollowed, withFollowed, withOwners } from './followed-session.ts';
import {
  endFollowing,
  type Followed,
  readFollowed,
  readSubscription,
  requireFollowed,
  type Subscription,
} from './following.ts';
import { finding, Refused, short } from './source-address.ts';
import { inSource, openSnapshotSession } from './source-session.ts';
import { hasApplied, readSlot, writtenLsn } from './source-slot.ts';

/**
 * The end of following: the branch becomes the database that is written to. Each step can be repeated, and until the
 * last one the branch still follows.
 */

type CutOver = MethodResult<'follow.cutover'>;
type Outcome = NonNullable<Followed['outcome']>;

const CHANGE_WITHIN_MS = 20_000;
const CHANGING = { within: CHANGE_WITHIN_MS, mode: 'change' } as const;
/** Changes that were not applied before the writes were refused. */
const APPLIED = { within: 60_000, every: 4 };
const LOOK_AT_SLOT_EVERY_MS = 1_000;
const COUNT_WITHIN_MS = 600_000;
const COUNTED_AT_A_TIME = 4;
/** Shares of the progress. */
const APPLIED_AT = 0.3;
const COMPARED_AT = 0.9;

const CANCELLED = finding('rows', 'The cut-over was called off.', { path: '' });

/**
 * @throws HostError INVALID_CALL for a branch that follows nothing, HOST_BUSY. What is in the way is a finding, and
 *   the source accepts writes again
 */
export const cutOver = (
  host: FollowHost,
  params: Params<'follow.cutover'>,
  onProgress?: OnProgress,
): Promise<CutOver> =>
  // The lock of the database keeps clones away.
  withFollowed(host, params, async (session) => {
    const [known] = await readFollowed(session, { branch_id: params.branch_id });
    if (known?.outcome)
      return { cut_over: await complete(host, session, known, known.outcome), findings: [] };
    const followed = await requireFollowed(session, params.branch_id);
    if (followed.problem) {
      const message = `Replication of the branch is stopped: ${followed.problem.message}`;
      return { cut_over: null, findings: [finding('rows', message, { path: '' })] };
    }
    await session.query(`UPDATE following SET cutover = 'refusing' WHERE branch_id = $1`, [params.branch_id]);
    try {
      const outcome = await runCutOver(host, session, followed, params, onProgress);
      return { cut_over: await complete(host, session, followed, outcome), findings: [] };
    } catch (error) {
      await acceptWrites(host, followed).catch((failure) =>
        host.log('follow.writes_refused', { branch_id: followed.branch_id, reason: String(failure) }),
      );
      if (!(error instanceof Refused)) throw error;
      return { cut_over: null, findings: [error.finding] };
    }
  });

/** Stores the outcome after the subscription has ended, so that a repeated call can return it. */
async function complete(
  host: FollowHost,
  session: Session,
  { project_id, branch_id, database, cutover, print }: Followed,
  outcome: Outcome,
): Promise<NonNullable<CutOver['cut_over']>> {
  const { compared_at, ...known } = outcome;
  if (cutover === 'done') return { ...NOT_KNOWN, ...known };
  const of = { project_id, branch_id, database, source_url: null };
  const stopped = await endFollowing(host, session, of, { isCutOver: true, leavesSource: print !== null });
  const refused_ms = known.refused_ms + Math.max(0, Date.now() - compared_at);
  const whole = { ...known, ...stopped, refused_ms };
  await session.query('UPDATE following SET outcome = $2 WHERE branch_id = $1', [
    branch_id,
    JSON.stringify(whole),
  ]);
  return whole;
}

const NOT_KNOWN = {
  dropped_at_source: false,
  message: 'It is not known whether the slot was dropped at the source.',
};

async function runCutOver(
  host: FollowHost,
  session: Session,
  followed: Followed,
  { writes_refused, is_compared, until_lsn }: Params<'follow.cutover'>,
  onProgress: OnProgress | undefined,
): Promise<Outcome> {
  const subscription = await readSubscription(session, followed);
  if (!subscription) throw new HostError('INVALID_CALL', 'the branch has no subscription');
  const began = performance.now();
  if (!writes_refused) await refuseWrites(host, followed, subscription);
  const applied = untilApplied(host, followed, subscription, until_lsn);
  // Clients wait, so the session here opens meanwhile. It throws what the other one throws.
  applied.catch(() => {});
  const sequences = await inFollowed(host, followed, 'change', async (own) =>
    setSequences(own, await applied),
  );
  onProgress?.(APPLIED_AT);
  const onCompared = partOf(onProgress, APPLIED_AT, COMPARED_AT);
  const compared = is_compared
    ? listCompared([])
    : await compareTables(host, followed, subscription, onCompared);
  const outcome = { ...compared, sequences, refused_ms: performance.now() - began, compared_at: Date.now() };
  await finish(session, followed, outcome);
  return outcome;
}

/**
 * Changes of the schema are not among those that are followed, so a move compares it when its source has no clients any
 * more. @returns false if the schema is another one than was copied
 */
export const hasSchemaOfCopy = async ({ print }: Pick<Followed, 'print'>, there: Session): Promise<boolean> =>
  print === null || (await atSource(databasePrint(there, 'schema'))) === print;

export const OTHER_SCHEMA = finding(
  'schema',
  'The schema of main was changed while the project moved. Move it again, and change no tables, functions or privileges meanwhile.',
);

const LOST_AT_HOST =
  'The former host has removed WAL that the move needed. Raise its max_slot_wal_keep_size, and move the project again.';

/** The last step: it can no longer be called off. */
async function finish(session: Queryable, { branch_id }: Followed, outcome: Outcome): Promise<void> {
  const { rowCount } = await session.query(
    `UPDATE following SET cutover = 'finishing', outcome = $2 WHERE branch_id = $1 AND cutover IS NOT NULL`,
    [branch_id, JSON.stringify(outcome)],
  );
  if (rowCount === 0) throw new Refused(CANCELLED);
}

async function isCancelled(host: FollowHost, { branch_id }: Followed): Promise<boolean> {
  const [present] = await readFollowed(host.postgres, { branch_id });
  return !present?.cutover;
}

/**
 * Sessions of others that can write. PostgreSQL hides the kind and the name of a session of a role that this login is no
 * member of, so one without a kind counts as a client. Autovacuum has no role. Sessions that this login cannot end, such as
 * those of superusers, are named.
 */
const OTHERS = `FROM pg_stat_activity LEFT JOIN pg_user USING (usesysid, usename) WHERE datname = current_database()
  AND usesysid IS NOT NULL AND coalesce(backend_type, 'client backend') ~ '^(client backend|logical replication .*worker)$'
  AND pid <> pg_backend_pid() AND (application_name = 'branchgate' AND usename = current_user) IS NOT TRUE`;

/** Logins whose own setting prevails over that of the database. */
const OVERRIDING = `SELECT rolname::text AS login FROM pg_db_role_setting AS own JOIN pg_roles ON pg_roles.oid = own.setrole
  LEFT JOIN pg_database ON pg_database.oid = own.setdatabase
  WHERE coalesce(datname = current_database(), true) AND EXISTS (
    SELECT FROM unnest(setconfig) AS entry WHERE entry LIKE 'default\\_transaction\\_read\\_only=%'
      AND split_part(entry, '=', 2) NOT IN ('on', 'true', 'yes', '1'))`;

/** Refuses new writes at the source: its sessions begin read-only, and those that are open end. */
async function refuseWrites(host: FollowHost, followed: Followed, { source }: Subscription): Promise<void> {
  await host.postgres.query(
    'UPDATE following SET refused_at = coalesce(refused_at, clock_timestamp()) WHERE branch_id = $1',
    [followed.branch_id],
  );
  const name = identifier(source.database);
  const refused = await inSource(host.settings, source, CHANGING, async ({ session }) => {
    const overriding = (await session.query<{ login: string }>(OVERRIDING)).rows.map(({ login }) => login);
    if (overriding.length > 0) return { overriding, open: [] };
    await session.query(`ALTER DATABASE ${name} SET default_transaction_read_only = on`);
    const open = async () =>
      (
        await session.query<{ login: string }>(
          `SELECT usename::text AS login,
               CASE WHEN NOT usesuper AND (pg_has_role(usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
                 THEN pg_terminate_backend(pid) END ${OTHERS}`,
        )
      ).rows.map(({ login }) => login);
    const haveEnded = async () => (await open()).length === 0;
    const isOver = await pollUntil(haveEnded, { within: CHANGE_WITHIN_MS / 2, every: 20 });
    return { overriding, open: isOver ? [] : [...new Set(await open())] };
  });
  const statement = `ALTER DATABASE ${name} SET default_transaction_read_only = on; SELECT pg_terminate_backend(pid) ${OTHERS.replaceAll(/\s+/g, ' ')}`;
  const message =
    'Writes could not be refused at the source. Stop everything that writes there, or run the statement as its owner, and cut over with writes_stopped.';
  if (!refused.ok)
    throw new Refused(finding('rights', `${message} ${refused.failure.message}`, { path: '', statement }));
  const { overriding, open } = refused.value;
  if (overriding.length > 0)
    throw new Refused(
      finding(
        'rights',
        `These logins have a setting of their own that admits writes: ${overriding.map(short).join(', ')}. Reset it, and cut over again.`,
        {
          path: '',
          statement: overriding
            .map(
              (login) =>
                `ALTER ROLE ${identifier(login)} RESET default_transaction_read_only; ALTER ROLE ${identifier(login)} IN DATABASE ${name} RESET default_transaction_read_only`,
            )
            .join('; '),
        },
      ),
    );
  if (open.length > 0)
    throw new Refused(
      finding('rights', `${message} Sessions of these logins do not end: ${open.map(short).join(', ')}.`, {
        path: '',
        statement,
      }),
    );
}

/** Undoes `refuseWrites`, and forgets the cut-over. */
async function acceptWrites(host: FollowHost, followed: Followed): Promise<void> {
  const [present] = await readFollowed(host.postgres, { branch_id: followed.branch_id });
  const subscription = await readSubscription(host.postgres, followed);
  if (present?.refused_at && subscription) {
    const { source } = subscription;
    const accepted = await inSource(host.settings, source, CHANGING, ({ session }) =>
      session.query(`ALTER DATABASE ${identifier(source.database)} RESET default_transaction_read_only`),
    );
    if (!accepted.ok) throw new HostError('POSTGRES_UNAVAILABLE', `the source: ${accepted.failure.message}`);
  }
  await host.postgres.query(
    `UPDATE following SET cutover = NULL, refused_at = NULL WHERE branch_id = $1 AND outcome IS NULL`,
    [followed.branch_id],
  );
}

/**
 * Waits until the branch has applied everything that the source has written.
 * @param untilLsn up to where that is, if the source has said it
 * @returns the sequences of the source then, read in the same session, because clients wait for it
 */
async function untilApplied(
  host: FollowHost,
  followed: Followed,
  { source, oid }: Subscription,
  untilLsn: string | undefined,
): Promise<Awaited<ReturnType<typeof readSequences>>> {
  const bounds = { within: APPLIED.within + CHANGE_WITHIN_MS };
  const read = await inSource(host.settings, source, bounds, async ({ session }) => {
    const lsn = untilLsn ?? (await writtenLsn(session));
    let lookAt = performance.now() + LOOK_AT_SLOT_EVERY_MS;
    const isApplied = async () => {
      if (await hasApplied(host.postgres, oid, lsn)) return 'applied';
      if (await isCancelled(host, followed)) return CANCELLED;
      if (performance.now() < lookAt) return null;
      lookAt = performance.now() + LOOK_AT_SLOT_EVERY_MS;
      return (await readSlot(session, followed.slot)).isLost ? lostSlot(followed) : null;
    };
    const applied = await pollUntil<SourceFinding | 'applied'>(isApplied, APPLIED);
    if (applied !== 'applied') return fail(applied ?? NOT_APPLIED);
    if (!(await hasSchemaOfCopy(followed, session))) return fail(OTHER_SCHEMA);
    return ok(await readSequences(session));
  });
  if (!read.ok) throw new Refused(read.failure);
  if (!read.value.ok) throw new Refused(read.value.failure);
  return read.value.value;
}

const NOT_APPLIED = finding(
  'rows',
  'The branch has not applied the last changes of the source in a minute. Try again when it is level.',
  { path: '' },
);

const lostSlot = ({ print }: Followed) =>
  finding('replication_slots', print !== null ? LOST_AT_HOST : 'The source has dropped the slot.', {
    path: '',
  });

type InOwners = Parameters<Parameters<typeof withOwners>[2]>[0];

type Compared = Pick<NonNullable<CutOver['cut_over']>, 'tables' | 'has_more' | 'rows'>;

/** The tables of the subscription, by schema and name. */
export const followedTables = (host: FollowHost, followed: Followed) =>
  inFollowed(host, followed, 'change', async (session) => {
    const { rows } = await session.query<{ schema: string; name: string }>(
      `SELECT n.nspname AS schema, c.relname AS name FROM pg_catalog.pg_subscription_rel
       JOIN pg_catalog.pg_class AS c ON c.oid = srrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace`,
    );
    return rows.map(({ schema, name }) => [schema, name] as const);
  });

/** Counts the rows of each table on both sides, and compares the values of a sample. */
async function compareTables(
  host: FollowHost,
  followed: Followed,
  { source }: Subscription,
  onProgress: OnProgress | undefined,
): Promise<Compared> {
  const names = await followedTables(host, followed);
  const bounds = { within: CHANGE_WITHIN_MS };
  const listed = await inSource(host.settings, source, bounds, ({ session }) => listTables(session, names));
  if (!listed.ok) throw new Refused(listed.failure);
  const waiting = listed.value;
  const all = waiting.length;
  const compared: Compared['tables'] = [];
  const deadline = performance.now() + COUNT_WITHIN_MS;
  const work = async (inOwners: InOwners) => {
    if (waiting.length === 0) return;
    const theirs = await openSnapshotSession(host.settings, source, null, 'rows');
    try {
      await inOwners(async (ours) => {
        for (let table = waiting.shift(); table; table = waiting.shift()) {
          if (await isCancelled(host, followed)) throw new Refused(CANCELLED);
          if (performance.now() > deadline) throw new Refused(TOO_LONG);
          compared.push(await compareTable(theirs.session, ours, table));
          onProgress?.(compared.length / all);
        }
      });
    } finally {
      theirs.end();
    }
  };
  const workAll = async (inOwners: InOwners) => {
    const ends = await Promise.allSettled(Array.from({ length: COUNTED_AT_A_TIME }, () => work(inOwners)));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  };
  await withOwners(host, followed, workAll, COUNT_WITHIN_MS);
  return listCompared(compared);
}

const TOO_LONG = finding('rows', 'Counting the rows has taken too long.', { path: '' });

/** @throws Refused if they differ */
export async function compareTable(
  theirs: Session,
  ours: Session,
  table: CopiedTable,
): Promise<Compared['tables'][number]> {
  const [there, here] = await Promise.all([atSource(countRows(theirs, table)), countRows(ours, table)]);
  const { sampled, isEqual } =
    there === here ? await compareSample(theirs, ours, table, there) : { sampled: 0, isEqual: false };
  if (!isEqual)
    throw new Refused(
      finding(
        'rows',
        there === here
          ? `Rows of ${short(tableName(table))} have other values than at the source.`
          : `The rows of ${short(tableName(table))} differ: ${there} at the source, ${here} here.`,
        {
          path: '',
          object: short(tableName(table)),
        },
      ),
    );
  return {
    schema: table.schema,
    table: table.name,
    rows: there,
    compared: sampled,
  };
}

/** Ends a cut-over that waits or counts. It notices that, and undoes what it has done. */
export async function cancelCutOver(
  host: FollowHost,
  { branch_id }: Params<'follow.cancel_cutover'>,
): Promise<MethodResult<'follow.cancel_cutover'>> {
  const { rowCount } = await host.postgres.query(
    `UPDATE following SET cutover = NULL WHERE branch_id = $1 AND cutover = 'refusing'`,
    [branch_id],
  );
  const [followed] = await readFollowed(host.postgres, { branch_id });
  // A killed cut-over has left the source refusing writes.
  if (followed?.refused_at && followed.cutover === null) await acceptWrites(host, followed);
  return { cancelled: (rowCount ?? 0) > 0 };
}
