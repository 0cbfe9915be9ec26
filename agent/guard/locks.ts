import { byBranch, type Finding, type Guard, type Observation } from './guard.ts';

/** A session that reads or changes rows has some dozens. `pg_dump` has one for each table. */
const PER_SESSION = 5_000;
/** All sessions of one project. */
const PER_PROJECT = 50_000;
/**
 * All sessions of the host: half of the table's 400,000 or more. Accounts are free, so projects can take
 * turns.
 */
const PER_HOST = 200_000;

type Branches = ReturnType<typeof locksByBranch>;

/** Entries of the lock table, which all tenants share. Without room in it nobody can log in. */
export class Locks implements Guard {
  readonly name = 'locks';
  readonly reason = 'locks';

  check({ sessions }: Observation): Finding[] {
    const greedy = sessions.filter(({ locks }) => locks > PER_SESSION);
    if (greedy.length > 0)
      return greedy.map((session) => ({
        sessions: [session],
        branches: session.branch ? [session.branch] : [],
        blocksUnknown: true,
        detail: { locks: session.locks },
      }));
    const branches = locksByBranch(sessions);
    const projects = [...Map.groupBy(branches, ({ branch }) => branch.project_id).values()];
    const ofProjects = projects.flatMap((project) => greediest(project, PER_PROJECT));
    return ofProjects.length > 0 ? ofProjects : greediest(branches, PER_HOST);
  }
}

function locksByBranch(sessions: Observation['sessions']) {
  return [...byBranch(sessions)].map(([branch, own]) => ({
    branch,
    own,
    locks: own.reduce((sum, { locks }) => sum + locks, 0),
  }));
}

/** The branches with the most locks, as many as it takes to bring all of them together within `limit`. */
function greediest(branches: Branches, limit: number): Finding[] {
  let total = branches.reduce((sum, { locks }) => sum + locks, 0);
  const findings: Finding[] = [];
  for (const { branch, own, locks } of branches.toSorted((one, other) => other.locks - one.locks)) {
    if (total <= limit) break;
    findings.push({ sessions: own, branches: [branch], detail: { locks, locks_together: total } });
    total -= locks;
  }
  return findings;
}
