import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { nameHeld } from '../cloning/claim-branch.ts';
import { identifier, inTransaction, literal, type Session } from '../postgres/connect.ts';
import { readDatabases } from '../postgres/databases.ts';
import { runAlone, takeLock, withLocks } from '../postgres/locks.ts';
import { clearDatabase } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import { readFollowed } from '../transfer/following.ts';
import type { BranchHost } from './branch.ts';

/**
 * Gives the database of a branch another name. Its logins, passwords, rules, grants and settings belong to the branch
 * or to the oid of the database, so they stay. Both names are unusable for a moment, and every session ends.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL, POOLER_UNAVAILABLE
 */
export function renameBranch(
  host: BranchHost,
  params: Params<'branch.rename'>,
): Promise<MethodResult<'branch.rename'>> {
  const { branch_id, database } = params;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    const present = await presentName(session, params);
    if (present === database) {
      // An earlier call may have been killed before the servers had the new name.
      await host.rules.sync();
      return { renamed: false };
    }
    // A clone of the database finds it by its name.
    await takeLock(session, `source:${present}`);
    await host.rules.withhold([present], () => rename(host, session, params, present));
    return { renamed: true };
  });
}

/** The name that the database of the branch has. @throws HostError INVALID_CALL, DATABASE_NAME_HELD */
async function presentName(
  session: Session,
  { project_id, branch_id, database }: Params<'branch.rename'>,
): Promise<string> {
  const { rows } = await session.query<{ name: string }>(
    'SELECT database AS name FROM branch WHERE branch_id = $1 AND project_id = $2',
    [branch_id, project_id],
  );
  const [present] = rows;
  const found = await readDatabases(session, present ? [present.name, database] : []);
  const isOwn = found.some(({ name, mark }) => name === present?.name && mark?.branch_id === branch_id);
  if (!present || !isOwn) throw new HostError('INVALID_CALL', `branch ${branch_id} has no database here`);
  if ((await readFollowed(session, { branch_id })).length > 0)
    throw new HostError('INVALID_CALL', 'the branch follows a database elsewhere');
  if (present.name === database) return database;
  const held = await session.query('SELECT FROM branch WHERE database = $1', [database]);
  if (held.rowCount !== 0 || found.some(({ name }) => name === database)) throw nameHeld(database);
  return present.name;
}

const rename = (
  { postgres }: BranchHost,
  session: Session,
  { branch_id, database }: Params<'branch.rename'>,
  present: string,
) =>
  runAlone(
    { postgres, session },
    present,
    () =>
      inTransaction(session, () =>
        session.query(
          `ALTER DATABASE ${identifier(present)} RENAME TO ${identifier(database)};
           UPDATE branch SET database = ${literal(database)} WHERE branch_id = ${literal(branch_id)};
           UPDATE rehearsal SET database = ${literal(database)} WHERE branch_id = ${literal(branch_id)}`,
        ),
      ),
    async (signal) => {
      await clearDatabase(postgres, present, signal);
      return true;
    },
  );
