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
  /** Position of the first victim, so that files with the same moments kill different parts. */
  firstVictim: number;
}

/**
 * By day every twelfth moment, each with the next victim. In the nightly run, every moment with every
 * victim.
 */
export function faultCases({ moments, nightly = [], firstVictim }: Moments): FaultCase[] {
  if (IS_NIGHTLY) {
    return [...moments, ...nightly].flatMap((moment) =>
      VICTIMS.map((victim) => ({ name: moment.name, victim, moment })),
    );
  }
  return moments
    .filter((_, n) => n % 12 === 0)
    .map((moment, n) => {
      const victim = VICTIMS[(firstVictim + n) % VICTIMS.length] ?? VICTIMS[0];
      return { name: moment.name, victim, moment };
    });
}

/** Of a deletion by this method. @param table of the agent, from which it goes last */
export const deletionCases = (
  method: 'branch.drop' | 'project.drop',
  table: string,
  firstVictim: number,
): FaultCase[] =>
  faultCases({
    firstVictim,
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
