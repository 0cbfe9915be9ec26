import { byBranch, type Finding, type Guard, type Observation } from './guard.ts';

/** A session that reads or changes rows has some dozens. `pg_dump` has one for each table. */
const PER_SESSION = 5_000;
/** All sessions of one project. The table has room for about 400,000. */
const PER_PROJECT = 50_000;

/** Entries of the lock table, which all tenants share. Without room in it nobody can log in. */
export class Locks implements Guard {
  readonly name = 'locks';
  readonly reason = 'locks';

  check({ sessions }: Observation): Finding[] {
    const greedy = sessions.filter(({ locks }) => locks > PER_SESSION);
    const findings = greedy.map((session) => ({
      sessions: [session],
      branches: session.branch ? [session.branch] : [],
      detail: { locks: session.locks },
    }));
    return findings.length > 0 ? findings : greediestBranches(sessions);
  }
}

/** The branch with the most locks of each project that has too many. */
function greediestBranches(sessions: Observation['sessions']): Finding[] {
  const branches = [...byBranch(sessions)].map(([branch, own]) => ({
    branch,
    own,
    locks: own.reduce((sum, { locks }) => sum + locks, 0),
  }));
  return [...Map.groupBy(branches, ({ branch }) => branch.project_id).values()].flatMap((project) => {
    const total = project.reduce((sum, { locks }) => sum + locks, 0);
    const [most] = project.toSorted((one, other) => other.locks - one.locks);
    if (!most || total <= PER_PROJECT) return [];
    return [{ sessions: most.own, branches: [most.branch], detail: { locks: total } }];
  });
}
