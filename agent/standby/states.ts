import type { HostMember } from '../../shared/protocol/standby.ts';

/**
 * Every state of a member of a host and its standby, every event, the next state, and what the agent does then.
 * States cause nothing. Transitions cause actions, and the next state is stored before its action begins
 * (docs/decisions/standby.md).
 */

/**
 * - `none`: a host that never had a standby and is none. It has no file.
 * - `primary`: serves clients, or is closed for a switch (`closing` of its record).
 * - `copying`: a standby whose copy of the primary is not complete.
 * - `standby`: has a copy and follows the primary.
 * - `promoting`: becomes a primary, and does not serve yet.
 * - `fenced`: another host has taken over. Its servers stay stopped.
 */
export const STATES = ['none', 'primary', 'copying', 'standby', 'promoting', 'fenced'] as const;
export type State = (typeof STATES)[number];

/**
 * The first four are records of the gateway with the current generation or a newer one. `refused`: a server's gate or the
 * guard of the lease hears that this host is fenced. `start`: the agent starts.
 */
export const EVENTS = [
  'primary',
  'closing',
  'standby',
  'fenced',
  'copy begun',
  'copy ended',
  'promotion ended',
  'refused',
  'start',
] as const;
export type Event = (typeof EVENTS)[number];

/**
 * - `open`, `close`: admit clients, or end them.
 * - `promote`: end the recovery, then open or close as the record says.
 * - `fence`: stop both servers, and end the agent, which starts again without its work.
 * - `stop`: stop both servers, which a killed agent may have left.
 * - `ignore`: nothing is stored and nothing is done.
 * - `reject`: nothing is stored, and the caller gets an error.
 */
export type Action = 'none' | 'open' | 'close' | 'promote' | 'fence' | 'stop' | 'ignore' | 'reject';

interface Cell {
  readonly to: State;
  readonly action: Action;
}

const cell = (to: State, action: Action): Cell => ({ to, action });

export const TRANSITIONS: Record<State, Record<Event, Cell>> = {
  none: {
    primary: cell('primary', 'open'),
    closing: cell('primary', 'close'),
    // Data that was written here is no copy of another host's.
    standby: cell('fenced', 'fence'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    'copy ended': cell('none', 'reject'),
    'promotion ended': cell('none', 'ignore'),
    refused: cell('none', 'ignore'),
    start: cell('none', 'ignore'),
  },
  primary: {
    primary: cell('primary', 'open'),
    closing: cell('primary', 'close'),
    standby: cell('fenced', 'fence'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    'copy ended': cell('primary', 'reject'),
    'promotion ended': cell('primary', 'ignore'),
    // The guard of the lease stops PostgreSQL.
    refused: cell('fenced', 'none'),
    start: cell('primary', 'ignore'),
  },
  copying: {
    // Stored, the record would let the servers of an incomplete copy open.
    primary: cell('copying', 'reject'),
    closing: cell('copying', 'reject'),
    standby: cell('copying', 'none'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    'copy ended': cell('standby', 'none'),
    'promotion ended': cell('copying', 'ignore'),
    refused: cell('copying', 'ignore'),
    start: cell('copying', 'ignore'),
  },
  standby: {
    primary: cell('promoting', 'promote'),
    closing: cell('promoting', 'promote'),
    standby: cell('standby', 'none'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    'copy ended': cell('standby', 'ignore'),
    'promotion ended': cell('standby', 'ignore'),
    refused: cell('standby', 'ignore'),
    start: cell('standby', 'ignore'),
  },
  promoting: {
    primary: cell('promoting', 'promote'),
    closing: cell('promoting', 'promote'),
    // The recovery may have ended, so the data is no copy any more. A later start must not continue the promotion.
    standby: cell('fenced', 'fence'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    'copy ended': cell('promoting', 'reject'),
    'promotion ended': cell('primary', 'none'),
    refused: cell('fenced', 'none'),
    start: cell('promoting', 'promote'),
  },
  fenced: {
    // Data that another host has taken over from is never served again.
    primary: cell('fenced', 'ignore'),
    closing: cell('fenced', 'ignore'),
    standby: cell('fenced', 'fence'),
    fenced: cell('fenced', 'fence'),
    'copy begun': cell('copying', 'none'),
    // A newer record fenced this host during its copy.
    'copy ended': cell('fenced', 'reject'),
    'promotion ended': cell('fenced', 'ignore'),
    refused: cell('fenced', 'ignore'),
    start: cell('fenced', 'stop'),
  },
};

/** The event that a record of the gateway is. */
export const eventOf = ({ role, closing }: HostMember): Event =>
  role === 'primary' && closing ? 'closing' : role;
