import { setTimeout as sleep } from 'node:timers/promises';
import { partOf } from '../support/stack/crash.ts';
import { type Fault, STEPS } from './schedule.ts';
import type { Stage } from './stage.ts';
import { describeStrike, inject } from './strikes.ts';
import type { Trail } from './trail.ts';

/** A step that has not come by then won't: what is stuck would be waited for without an end. */
const STEP_WITHIN_MS = 30_000;

export interface InjectedFaults {
  /** What was struck and when, in words. */
  faults: string[];
  /** Kinds that this machine can't do. */
  leftOut: string[];
  /** Clones that PostgreSQL's own end may have interrupted, so that they are lawfully made anew. */
  interruptedClones: number;
}

/** Lets the faults come one after the other. @param over ends the wait for steps that nobody takes any more */
export async function injectFaults(
  stage: Stage,
  faults: Fault[],
  trail: Trail,
  over: AbortSignal,
): Promise<InjectedFaults> {
  const struck: InjectedFaults = { faults: [], leftOut: [], interruptedClones: 0 };
  for (const fault of faults) {
    const when = await untilItsMoment(stage, fault, over);
    if (!when) continue;
    const endsServer = fault.strikes.some(
      (strike) => 'part' in strike && strike.kind === 'kill' && partOf(strike.part) === 'postgres',
    );
    const before = trail.openCreations();
    const outcomes = await Promise.all(
      fault.strikes.map(async (strike) => ({ strike, outcome: await inject(stage, strike) })),
    );
    stage.link.letGo();
    await Promise.all(outcomes.map(({ outcome }) => outcome?.over));
    if (endsServer) struck.interruptedClones += new Set([...before, ...trail.openCreations()]).size;
    await stage.startAll();
    for (const { strike, outcome } of outcomes) {
      if (outcome) struck.faults.push(`${describeStrike(strike)} ${when}`);
      else struck.leftOut.push(strike.kind);
    }
  }
  return struck;
}

/** @returns the moment in words; null when it does not come */
async function untilItsMoment({ link }: Stage, { when }: Fault, over: AbortSignal): Promise<string | null> {
  if ('after_ms' in when) {
    await sleep(when.after_ms);
    return `after ${when.after_ms} ms`;
  }
  const spot = STEPS[when.step - 1];
  if (!spot || over.aborted) return null;
  const never = new Promise<false>((resolve) =>
    over.addEventListener('abort', () => resolve(false), { once: true }),
  );
  const tooLate = sleep(STEP_WITHIN_MS, false, { ref: false });
  const came = await Promise.race([link.hold(spot).then(() => true), never, tooLate]);
  if (came) return `at step ${when.step} (${spot.method}, ${spot.side})`;
  link.letGo();
  return null;
}
