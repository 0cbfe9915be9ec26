import { and, eq, inArray, type SQL, sql } from 'drizzle-orm';
import type { Failure, FailureCode } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import type { HostRole } from '../database/column-types.ts';
import { type Database, isThere, type Statement } from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import { hosts } from '../database/schema.ts';
import type { HostRow } from '../hosts/pair.ts';

/**
 * Every role of a host, every event of a pair, and the next role (docs/decisions/standby.md). One statement changes the rows of
 * both hosts, so no reader sees two primaries. `agent/standby/states.ts` is what each host does with its record.
 */

/**
 * - `admit`: the standby begins to copy the primary.
 * - `close`: a planned switchover begins; the primary ends its clients.
 * - `reopen`: that switchover is abandoned.
 * - `switch over`: the standby of a closed primary has all that was committed, and takes over.
 * - `fail over`: the primary is lost, and the standby takes over.
 */
export const EVENTS = ['admit', 'close', 'reopen', 'switch over', 'fail over'] as const;
export type Event = (typeof EVENTS)[number];

/** The next role of a host, or the failure if the event cannot happen to it. */
type Next = HostRole | { refused: FailureCode };

const not = (refused: FailureCode) => ({ refused });

/** The host that has projects, and the one that follows it. */
type Side = 'primary' | 'standby';

const TRANSITIONS: Record<Event, Record<Side, Record<HostRole, Next>>> = {
  admit: {
    primary: {
      primary: 'primary',
      closing: not('HOST_UNAVAILABLE'),
      standby: not('HOST_NOT_STANDBY'),
      fenced: not('HOST_NOT_STANDBY'),
    },
    standby: {
      primary: not('HOST_NOT_STANDBY'),
      closing: not('HOST_NOT_STANDBY'),
      standby: 'standby',
      // The copy replaces the host's own data.
      fenced: 'standby',
    },
  },
  close: {
    primary: {
      primary: 'closing',
      // A repeated request continues the switchover of one that was interrupted.
      closing: 'closing',
      standby: not('HOST_BUSY'),
      fenced: not('HOST_BUSY'),
    },
    standby: {
      primary: not('HOST_BUSY'),
      closing: not('HOST_BUSY'),
      standby: 'standby',
      fenced: not('HOST_BUSY'),
    },
  },
  reopen: {
    primary: {
      primary: not('HOST_BUSY'),
      closing: 'primary',
      standby: not('HOST_BUSY'),
      fenced: not('HOST_BUSY'),
    },
    // A primary reopens whatever has become of its standby.
    standby: { primary: 'primary', closing: 'closing', standby: 'standby', fenced: 'fenced' },
  },
  'switch over': {
    primary: {
      // Another request has reopened it, so it may have commits that the standby lacks.
      primary: not('HOST_NOT_STANDBY'),
      closing: 'fenced',
      standby: not('HOST_NOT_STANDBY'),
      fenced: not('HOST_NOT_STANDBY'),
    },
    standby: {
      primary: not('HOST_NOT_STANDBY'),
      closing: not('HOST_NOT_STANDBY'),
      standby: 'primary',
      fenced: not('HOST_NOT_STANDBY'),
    },
  },
  'fail over': {
    primary: {
      primary: 'fenced',
      closing: 'fenced',
      standby: not('HOST_NOT_STANDBY'),
      fenced: not('HOST_NOT_STANDBY'),
    },
    standby: {
      primary: not('HOST_NOT_STANDBY'),
      closing: not('HOST_NOT_STANDBY'),
      standby: 'primary',
      fenced: not('HOST_NOT_STANDBY'),
    },
  },
};

/** Returns whether a switchover or a failover changes which host has the projects. */
const swaps = (event: Event) => event === 'switch over' || event === 'fail over';

interface Pair {
  primary: HostRow;
  /** Null: the event is the primary's alone. */
  standby: HostRow | null;
}

interface Change {
  /** Generation of the record of each changed host; orders the changes for the agents. */
  generation: number;
  /** After the roles, in order: the failure of the first one that does not hold. */
  require?: Requirement[];
  /** Statements that must have no effect unless `isWritten`. */
  rest?: (isWritten: SQL) => Statement[];
  now: Date;
}

/**
 * Changes the roles of a pair as the table says, if both records are as they were read.
 * @returns or the failure of the table, or of `require`
 */
export async function transition(
  db: Database,
  event: Event,
  { primary, standby }: Pair,
  { generation, require = [], rest, now }: Change,
): Promise<Result<unknown, Failure>> {
  const table = TRANSITIONS[event];
  const sides: [Side, HostRow][] = [['primary', primary]];
  if (standby) sides.push(['standby', standby]);
  const changed = event === 'admit' || swaps(event) ? sides : sides.slice(0, 1);
  return guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(hosts)
        .set({
          role: nextRole(changed.map(([side, { id }]) => [id, table[side]])),
          ...(swaps(event) && standby
            ? {
                standbyOf: sql`case when ${hosts.id} = ${standby.id} then null else ${standby.id} end`,
                sync: 'off',
              }
            : {}),
          yieldsSince: event === 'close' ? now : null,
          generation,
        })
        .where(
          and(
            inArray(
              hosts.id,
              changed.map(([, { id }]) => id),
            ),
            isAllowed,
          ),
        ),
    require: [
      ...sides.flatMap(([side, { id }]) => refusals(id, table[side])),
      ...(standby ? ([[follows(standby.id, primary.id), 'HOST_NOT_STANDBY']] as const) : []),
      ...require,
      ...changed.map(([, row]) => isAsRead(row, refusedLate(event))),
    ] as [Requirement, ...Requirement[]],
    ...(rest && { rest }),
  });
}

const follows = (standbyId: string, primaryId: string) =>
  isThere(hosts, and(eq(hosts.id, standbyId), eq(hosts.standbyOf, primaryId)));

/** The failure of a request whose records another one has changed since they were read. */
const refusedLate = (event: Event): FailureCode =>
  event === 'admit' ? 'HOST_UNAVAILABLE' : swaps(event) ? 'HOST_NOT_STANDBY' : 'HOST_BUSY';

const isAsRead = ({ id, generation }: HostRow, failure: FailureCode): Requirement => [
  isThere(hosts, and(eq(hosts.id, id), eq(hosts.generation, generation))),
  failure,
];

/** For each role that the event refuses: the host does not have it. */
const refusals = (hostId: string, next: Record<HostRole, Next>): Requirement[] => [
  [isThere(hosts, eq(hosts.id, hostId)), 'HOST_NOT_STANDBY'],
  ...Object.entries(next).flatMap(([role, cell]): Requirement[] =>
    typeof cell === 'string'
      ? []
      : [
          [
            sql`not ${isThere(hosts, and(eq(hosts.id, hostId), eq(hosts.role, role as HostRole)))}`,
            cell.refused,
          ],
        ],
  ),
];

const nextRole = (sides: [hostId: string, next: Record<HostRole, Next>][]): SQL => {
  const cases = sides.flatMap(([hostId, next]) =>
    Object.entries(next).flatMap(([role, cell]) =>
      typeof cell === 'string'
        ? [sql`when ${hosts.id} = ${hostId} and ${hosts.role} = ${role} then ${cell}`]
        : [],
    ),
  );
  return sql`case ${sql.join(cases, sql` `)} else ${hosts.role} end`;
};
