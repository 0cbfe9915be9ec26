import { IS_NIGHTLY } from '../nightly.ts';
import { VICTIMS, type Victim } from './fault-stage.ts';
import type { Moment } from './moments.ts';

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
