import type { BranchDirectory } from './branch-directory.ts';
import type { Finding, Guard, Observation } from './guard.ts';
import { queuedByDatabase } from './queued-notifications.ts';

/** Shares of the queue: above the first the branch that fills it is blocked, above the second the sessions that hold it up. */
const MUCH = 0.1;
const TOO_MUCH = 0.5;
/** A listener in a transaction for less than this has not held the queue up. */
const HELD_UP_SECONDS = 1;

/**
 * The queue of NOTIFY, which all databases share. It is kept from the oldest notification on that a listener in a
 * transaction has not read; when it is full, NOTIFY fails on the whole host.
 */
export class NotificationQueue implements Guard {
  readonly name = 'notifications';
  readonly reason = 'disk';
  readonly #dataDir: string;
  readonly #directory: BranchDirectory;

  constructor(dataDir: string, directory: BranchDirectory) {
    this.#dataDir = dataDir;
    this.#directory = directory;
  }

  check(server: Observation): Finding[] {
    const share = server.notificationShare;
    if (share <= MUCH) return [];
    const findings = this.#fillers(share);
    return share > TOO_MUCH ? [...findings, ...oldestTransaction(server)] : findings;
  }

  /** The branch whose notifications are most of the queue. */
  #fillers(share: number): Finding[] {
    const queued = [...queuedByDatabase(this.#dataDir)].toSorted(([, one], [, other]) => other - one);
    const total = queued.reduce((sum, [, pages]) => sum + pages, 0);
    const [database, pages] = queued[0] ?? ['', 0];
    const branch = this.#directory.find(database);
    if (!branch || pages * 2 < total) return [];
    return [{ sessions: [], branches: [branch], detail: { queue: round(share) } }];
  }
}

/** No view shows who listens, so the oldest transactions are ended one after another until the queue moves. */
function oldestTransaction({ sessions, notificationShare }: Observation): Finding[] {
  const age = (session: (typeof sessions)[number]) => session.transactionSeconds;
  const [oldest] = sessions.toSorted((one, other) => age(other) - age(one));
  if (!oldest || age(oldest) < HELD_UP_SECONDS) return [];
  return [{ sessions: [oldest], branches: [], detail: { queue: round(notificationShare) } }];
}

const round = (share: number) => Math.round(share * 100) / 100;
