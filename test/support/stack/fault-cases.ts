import { IS_NIGHTLY } from '../nightly.ts';
import { VICTIMS, type Victim } from './fault-stage.ts';
import {
  afterEnd,
  afterMilliseconds,
  around,
  beforeRequest,
  type Moment,
  soonAfterReply,
  soonAfterRequest,
} from './moments.ts';

export interface FaultCase {
  name: string;
  victim: Victim;
  moment: Moment;
}

interface Moments {
  moments: readonly Moment[];
  /** Moments that only the nightly run takes. */
  nightly?: readonly Moment[];
  /** The position in `moments` of the one moment that a run by day takes, and its victim; left out: none. */
  byDay?: [position: number, victim: Victim];
}

/** By day one moment with one victim. In the nightly run, every moment with every victim. */
export function faultCases({ moments, nightly = [], byDay }: Moments): FaultCase[] {
  const caseOf = (moment: Moment, victim: Victim) => ({ name: moment.name, victim, moment });
  if (IS_NIGHTLY)
    return [...moments, ...nightly].flatMap((moment) => VICTIMS.map((victim) => caseOf(moment, victim)));
  if (!byDay) return [];
  const moment = moments[byDay[0]];
  if (!moment) throw new Error(`there is no moment ${byDay[0]}`);
  return [caseOf(moment, byDay[1])];
}

/**
 * Of a deletion by this method.
 * @param table of the agent, from which it goes last
 * @param victim by day, while the database is dropped
 */
export const deletionCases = (
  method: 'branch.drop' | 'project.drop',
  table: string,
  victim: Victim,
): FaultCase[] =>
  faultCases({
    byDay: [4, victim],
    moments: [
      beforeRequest('record', method),
      soonAfterRequest('record', 3, method),
      ...around(
        'drop',
        method,
        { table: 'login', statement: 'DELETE FROM login%' },
        { table: 'pg_database', statement: 'DROP DATABASE%' },
        { table, statement: `DELETE FROM ${table}%` },
      ),
      soonAfterReply('end', method, 0),
      afterEnd('end', method),
    ],
    nightly: afterMilliseconds('drop', method, 3, 12, 25),
  });
