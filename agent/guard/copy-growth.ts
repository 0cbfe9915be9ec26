import { singleFlight } from '../../shared/single-flight.ts';
import { DATABASES } from '../postgres/tenant-code.ts';
import { byBranch, type Finding, type Guard, type GuardedBranch, type Observation } from './guard.ts';

const CHECK_EVERY_MS = 1_000;

/** Bytes; null for a database that another bound keeps. */
const growthOf = ({ kind }: GuardedBranch): number | null => {
  const form = DATABASES[kind];
  return 'mayGrow' in form ? form.mayGrow : null;
};

interface Sizes {
  /** Bytes of a database; null if it is gone, or could not be sized. */
  of: (database: string) => Promise<number | null>;
  /** Bytes of each branch that is being rehearsed, when its rehearsal began. */
  ofRehearsed: () => Promise<ReadonlyMap<string, number>>;
}

/**
 * Growth of the copies on which statements are tried, branches that are being rehearsed among them. No quota counts the
 * former, and an owner's temporary table of a copy wrote 10 GB within the 30 s of a trial. A quota counts the latter
 * after a minute.
 */
export class CopyGrowth implements Guard {
  readonly name = 'growth';
  readonly reason = 'disk';
  readonly excess = 'growth';
  readonly #sizes: Sizes;
  /** Bytes of each copy when a session was first seen there. */
  #first = new Map<string, number>();
  #due: Finding[] = [];
  #checkAt = 0;

  constructor(sizes: Sizes) {
    this.#sizes = sizes;
  }

  check({ at, sessions }: Observation): Finding[] {
    if (at >= this.#checkAt) {
      this.#checkAt = at + CHECK_EVERY_MS;
      void this.#measure([...byBranch(sessions).keys()]);
    }
    const due = this.#due;
    this.#due = [];
    return due;
  }

  /** Not awaited: the other watchdogs must run. */
  readonly #measure = singleFlight(async (copies: readonly GuardedBranch[]) => {
    const first = new Map<string, number>();
    const none = new Map<string, number>();
    const mayBeRehearsed = copies.some(({ kind }) => kind === 'branch');
    const rehearsed = mayBeRehearsed ? await this.#sizes.ofRehearsed().catch(() => none) : none;
    for (const copy of copies) {
      const { kind, database } = copy;
      const room = growthOf(copy);
      if (room === null || (kind === 'branch' && !rehearsed.has(database))) continue;
      const bytes = await this.#sizes.of(database).catch(() => null);
      const before = rehearsed.get(database) ?? this.#first.get(database) ?? bytes;
      if (before === null) continue;
      first.set(database, before);
      // A rewrite of every table takes as much as the copy had.
      const grown = (bytes ?? before) - before;
      if (grown > before + room)
        this.#due.push({ sessions: [], branches: [copy], detail: { database, grown } });
    }
    this.#first = first;
  });
}
