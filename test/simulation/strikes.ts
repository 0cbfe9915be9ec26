import { setTimeout as sleep } from 'node:timers/promises';
import type { Strike, StrikeKind, StrikeOf } from './schedule.ts';
import type { Stage } from './stage.ts';

/** Takes back what a strike did. */
type Undo = () => unknown;

/**
 * What each kind of strike does, to the moment, and how it is taken back when its time is over. Null: this machine
 * can't do it. What has ended is started by the stage when every strike of a fault is over.
 */
const STRIKES: { [Kind in StrikeKind]: (stage: Stage, strike: StrikeOf<Kind>) => Promise<Undo | null> } = {
  kill: async (stage, { part }) => {
    await stage.kill(part);
    return () => {};
  },
  freeze: async (stage, { part }) => {
    stage.freeze(part);
    return () => stage.thaw(part);
  },
  cut: async ({ link }) => {
    link.cut();
    return () => {};
  },
  // As a router between the two that forgets the connection, and says so when it is asked again.
  half_open: async ({ link }) => {
    link.swallow();
    return () => link.cut();
  },
  slow: async ({ link }, { delay_ms }) => {
    link.delay = delay_ms;
    return () => {
      link.delay = 0;
    };
  },
  duplicate: async ({ link }) => {
    link.copies = 2;
    return () => {
      link.copies = 1;
    };
  },
  disk_full: async ({ disk }) => {
    if (!disk) return null;
    disk.fill();
    return () => disk.empty();
  },
  // The keys it has already would do for an hour, so the gateway begins anew as well.
  keys_away: async (stage) => {
    await Promise.all([stage.kill('idp'), stage.kill('gateway')]);
    await stage.stack.start('gateway');
    return () => stage.stack.start('idp');
  },
  // It begins anew with a wrong clock, which is set right while it runs.
  clock: async (stage, { ahead_s }) => {
    await stage.kill('agent');
    stage.agentClock.set(ahead_s);
    await stage.startPart('agent');
    return () => stage.agentClock.set(0);
  },
};

/** Strikes, and takes it back when its time is over. @returns whether this machine can do that */
export async function inject(stage: Stage, strike: Strike): Promise<{ over: Promise<void> } | null> {
  const act = STRIKES[strike.kind] as (stage: Stage, strike: Strike) => Promise<Undo | null>;
  const undo = await act(stage, strike);
  if (!undo) return null;
  return { over: sleep(strike.ms).then(async () => void (await undo())) };
}

/** In a few words, for reports. */
export const describeStrike = (strike: Strike): string =>
  'part' in strike ? `${strike.kind} ${strike.part}` : strike.kind;
