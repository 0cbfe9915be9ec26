import { setTimeout as sleep } from 'node:timers/promises';
import { partOf } from '../support/stack/crash.ts';
import type { Users } from './promotions.ts';
import { type Fault, STEPS } from './schedule.ts';
import type { Stage } from './stage.ts';
import { describeStrike, inject } from './strikes.ts';
import type { Trail } from './trail.ts';

/** A step that has not started by then never will, so the wait ends. */
const STEP_WITHIN_MS = 30_000;

export interface InjectedFaults {
  /** Descriptions of the faults. */
  faults: string[];
  /** Kinds that this machine does not support. */
  leftOut: string[];
  /**
   * Number of databases that may be made again: clones that a crash of PostgreSQL interrupted, and copies of
   * snapshots, of which the agent makes one at a time in the background and does not adopt one that its end
   * interrupted.
   */
  interruptedClones: number;
  /** Whether a PostgreSQL was killed. */
  hasCrashed: boolean;
}

/** Injects the faults in sequence. @param over ends the wait for steps that will not happen */
export async function injectFaults(
  stage: Stage,
  faults: Fault[],
  trail: Trail,
  users: Users,
  over: AbortSignal,
): Promise<InjectedFaults> {
  const injected: InjectedFaults = { faults: [], leftOut: [], interruptedClones: 0, hasCrashed: false };
  for (const fault of faults) {
    const when = await untilDue(stage, fault, over);
    if (!when) continue;
    const endsServer = fault.strikes.some(
      (strike) => 'part' in strike && strike.kind === 'kill' && partOf(strike.part) === 'postgres',
    );
    const endsAgent = fault.strikes.some(
      (strike) => strike.kind === 'clock' || (strike.kind === 'kill' && strike.part === 'agent'),
    );
    const before = trail.openCreations();
    const outcomes = await Promise.all(
      fault.strikes.map(async (strike) => ({ strike, outcome: await inject(stage, strike, users) })),
    );
    stage.link.letGo();
    await Promise.all(outcomes.map(({ outcome }) => outcome?.over));
    injected.hasCrashed ||= endsServer;
    if (endsServer) injected.interruptedClones += new Set([...before, ...trail.openCreations()]).size;
    if ((endsServer || endsAgent) && trail.hasSnapshots()) injected.interruptedClones += 1;
    await stage.startAll();
    for (const { strike, outcome } of outcomes) {
      if (outcome) injected.faults.push(`${describeStrike(strike)} ${when}`);
      else injected.leftOut.push(strike.kind);
    }
  }
  return injected;
}

/** @returns a description of the time; null if the step does not happen */
async function untilDue({ link }: Stage, { when }: Fault, over: AbortSignal): Promise<string | null> {
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
  const isHeld = await Promise.race([link.hold(spot).then(() => true), never, tooLate]);
  if (isHeld) return `at step ${when.step} (${spot.method}, ${spot.side})`;
  link.letGo();
  return null;
}
