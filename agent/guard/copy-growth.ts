import { singleFlight } from '../../shared/single-flight.ts';
import { DATABASES } from '../postgres/tenant-code.ts';
import { byBranch, type Finding, type Guard, type GuardedBranch, type Observation } from './guard.ts';

const CHECK_EVERY_MS = 1_000;

/** Bytes; null for a database that another bound keeps. */
const growthOf = ({ kind }: GuardedBranch): number | null => {
  const form = DATABASES[kind];
  return 'mayGrow' in form ? form.mayGrow : null;
};

/**
 * Growth of the copies on which statements are tried. No quota counts them, and an owner's temporary table of a copy
 * wrote 10 GB within the 30 s of a trial.
 */
export class CopyGrowth implements Guard {
  readonly name = 'growth';
  readonly reason = 'disk';
  readonly excess = 'growth';
  readonly #sizeOf: (database: string) => Promise<number | null>;
  /** Bytes of each database when a session was first seen there. */
  #first = new Map<string, number>();
  #due: Finding[] = [];
  #checkAt = 0;

  /** @param sizeOf bytes of a database; null if it is gone, or could not be sized */
  constructor(sizeOf: (database: string) => Promise<number | null>) {
    this.#sizeOf = sizeOf;
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
    for (const copy of copies) {
      const room = growthOf(copy);
      if (room === null) continue;
      const bytes = await this.#sizeOf(copy.database).catch(() => null);
      const before = this.#first.get(copy.database) ?? bytes;
      if (before === null) continue;
      first.set(copy.database, before);
      // A rewrite of every table takes as much as the copy had.
      const grown = (bytes ?? before) - before;
      if (grown > before + room)
        this.#due.push({ sessions: [], branches: [copy], detail: { database: copy.database, grown } });
    }
    this.#first = first;
  });
}
