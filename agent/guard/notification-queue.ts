import { closeSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { endianness } from 'node:os';
import { join } from 'node:path';
import type { Pool } from '../postgres/connect.ts';
import { pollUntil } from '../process/loops.ts';
import type { BranchDirectory } from './branch-directory.ts';
import type { Finding, Guard, Observation, TenantSession } from './guard.ts';

const PAGE_BYTES = 8_192;
/** Each entry begins with its length and the oid of the database it was sent in, four bytes each. */
const DATABASE_AT = 4;
/** An entry without a database fills the rest of a page. */
const NO_DATABASE = 0;

/**
 * In which databases the queue of NOTIFY was filled: oid → pages. No view shows who has sent a notification,
 * so the first entry of each page is read from PostgreSQL's files. The last pages may still be in its memory.
 */
function queuedByDatabase(dataDir: string): Map<string, number> {
  const folder = join(dataDir, 'pg_notify');
  const counts = new Map<string, number>();
  for (const name of readdirSync(folder)) {
    for (const database of databasesIn(join(folder, name)))
      counts.set(database, (counts.get(database) ?? 0) + 1);
  }
  return counts;
}

function databasesIn(path: string): string[] {
  const file = openSync(path, 'r');
  try {
    const found: string[] = [];
    const oid = Buffer.alloc(4);
    for (let page = 0; page < fstatSync(file).size; page += PAGE_BYTES) {
      readSync(file, oid, 0, oid.length, page + DATABASE_AT);
      const database = endianness() === 'LE' ? oid.readUInt32LE() : oid.readUInt32BE();
      if (database !== NO_DATABASE) found.push(String(database));
    }
    return found;
  } finally {
    closeSync(file);
  }
}

/**
 * Shares of the queue: above the first the branch that fills it is blocked, above the second the session that
 * holds it up is ended. Above the third PostgreSQL is asked for it without a pause.
 */
const MUCH = 0.1;
const TOO_MUCH = 0.5;
const NEARLY_ALL = 0.8;
/** When PostgreSQL has named nobody for so long while little is left, the oldest transaction of all is ended. */
const UNNAMED_MS = 30_000;
/** A branch or project that has sent less than this share of what is queued does not fill it. */
const FILLS = 0.1;
/** A listener in a transaction for less than this has not held the queue up. */
const HELD_UP_SECONDS = 1;

/**
 * The queue of NOTIFY, which all databases share. It is kept from the oldest notification on that a listener
 * in a transaction has not read; when it is full, NOTIFY fails on the whole host.
 */
export class NotificationQueue implements Guard {
  readonly name = 'notifications';
  readonly reason = 'disk';
  readonly #dataDir: string;
  readonly #directory: Pick<BranchDirectory, 'find'>;
  readonly #readHolder: (persists: boolean) => Promise<number | null>;
  #asking = false;
  /** Since when little is left and nobody was named; null while that is not so. */
  #unnamedSince: number | null = null;
  /** The process that PostgreSQL has named, and when it was asked. */
  #named: { pid: number; at: number } | null = null;

  /**
   * @param readHolder asks PostgreSQL for the process of a listener that holds the queue up, and with
   *   `persists` again until it names one or some seconds are over; null if it names none
   */
  constructor(
    dataDir: string,
    directory: Pick<BranchDirectory, 'find'>,
    readHolder: (persists: boolean) => Promise<number | null>,
  ) {
    this.#dataDir = dataDir;
    this.#directory = directory;
    this.#readHolder = readHolder;
  }

  check(server: Observation): Finding[] {
    const share = server.notificationShare;
    if (share <= NEARLY_ALL) this.#unnamedSince = null;
    else this.#unnamedSince ??= server.at;
    if (share <= MUCH) return [];
    const queued = queuedByDatabase(this.#dataDir);
    const findings = this.#fillers(queued, share);
    if (share <= TOO_MUCH) return findings;
    const sessions = this.#holders(server, queued);
    this.#ask(server.at, share > NEARLY_ALL);
    if (sessions.length === 0) return findings;
    return [...findings, { sessions, branches: [], detail: { queue: round(share) } }];
  }

  /** The branch whose notifications are most of the queue; when much is queued, each branch that fills it. */
  #fillers(queued: ReadonlyMap<string, number>, share: number): Finding[] {
    const least = sum(queued) * (share > TOO_MUCH ? FILLS : 0.5);
    const branches = [...queued].flatMap(([database, pages]) =>
      pages >= least ? (this.#directory.find(database) ?? []) : [],
    );
    return branches.length > 0 ? [{ sessions: [], branches, detail: { queue: round(share) } }] : [];
  }

  /**
   * No view shows who listens. The session that PostgreSQL names is ended; otherwise the oldest transaction
   * of the projects that fill the queue. The listener need not be of one of these. The oldest transaction of all is
   * ended only after PostgreSQL has named nobody for long. The next check ends others.
   */
  #holders(server: Observation, queued: ReadonlyMap<string, number>): TenantSession[] {
    const oldestFirst = server.sessions
      .filter(({ transactionSeconds }) => transactionSeconds >= HELD_UP_SECONDS)
      .toSorted((one, other) => other.transactionSeconds - one.transactionSeconds);
    const named = this.#named;
    const filling = this.#fillingProjects(queued);
    const likely =
      oldestFirst.find(
        // Its transaction may have ended since, and then it holds nothing up.
        ({ pid, transactionSeconds }) =>
          pid === named?.pid && transactionSeconds * 1_000 > server.at - named.at,
      ) ?? oldestFirst.find(({ branch }) => branch && filling.has(branch.project_id));
    const isUnnamed = this.#unnamedSince !== null && server.at - this.#unnamedSince > UNNAMED_MS;
    const oldest = isUnnamed ? oldestFirst[0] : undefined;
    return [...new Set([likely, oldest])].filter((session) => session !== undefined);
  }

  #fillingProjects(queued: ReadonlyMap<string, number>): Set<string> {
    const pagesOf = new Map<string, number>();
    for (const [database, pages] of queued) {
      const project = this.#directory.find(database)?.project_id;
      if (project) pagesOf.set(project, (pagesOf.get(project) ?? 0) + pages);
    }
    const enough = sum(queued) * FILLS;
    return new Set([...pagesOf].filter(([, pages]) => pages >= enough).map(([project]) => project));
  }

  /** Not awaited: the other watchdogs must run. Without a reply the queue is watched by its other rules. */
  #ask(at: number, persists: boolean): void {
    if (this.#asking) return;
    this.#asking = true;
    this.#readHolder(persists)
      .then(
        (pid) => {
          if (pid === null) return;
          this.#named = { pid, at };
          this.#unnamedSince = null;
        },
        () => {},
      )
      .finally(() => {
        this.#asking = false;
      });
  }
}

const sum = (queued: ReadonlyMap<string, number>) =>
  [...queued.values()].reduce((total, pages) => total + pages, 0);
const round = (share: number) => Math.round(share * 100) / 100;

/** Longer than the time between two warnings of PostgreSQL. */
const PERSISTS_MS = 6_000;
const ASK_EVERY_MS = 10;

/** PostgreSQL takes a lock of the whole server to send a notification. */
const ASK = "SET LOCAL lock_timeout = '1s'; SELECT pg_notify('branchgate', '')";

/**
 * Asks PostgreSQL for a listener that holds the queue of NOTIFY up. No view shows it. PostgreSQL warns a
 * session that sends a notification while at least half of the queue is in use, and names one of the
 * processes that have read least. It warns once in five seconds on the whole server, so most calls learn
 * nothing: a session of a tenant gets the warning. One that persists is first when the five seconds are over,
 * unless others notify as often.
 * @returns the number of its process, or null
 * @throws what PostgreSQL reports, unless it has named a process
 */
export async function readQueueHolder(pool: Pool, persists = false): Promise<number | null> {
  const named: number[] = [];
  const onNotice = ({ detail = '' }: { detail?: string | undefined }) => {
    // The text depends on `lc_messages`; the only number in it does not.
    const [pid] = /\d+/.exec(detail) ?? [];
    if (pid) named.push(Number(pid));
  };
  const session = await pool.connect();
  session.on('notice', onNotice);
  try {
    const ask = async () => {
      await session.query(ASK).catch((error) => {
        // The queue may be full, which is reported after the warning.
        if (named.length === 0 && !persists) throw error;
      });
      return named[0];
    };
    return await pollUntil(ask, { within: persists ? PERSISTS_MS : 0, every: ASK_EVERY_MS });
  } finally {
    session.off('notice', onNotice);
    session.release();
  }
}
