import { setTimeout as sleep } from 'node:timers/promises';
import type { Users } from './promotions.ts';
import type { Strike, StrikeKind, StrikeOf } from './schedule.ts';
import type { Stage } from './stage.ts';

/** Undoes a strike. */
type Undo = () => unknown;

/**
 * Starts a strike of each kind and returns its undo function, or null if this machine does not support it.
 * The stage restarts ended parts when every strike of a fault is over.
 */
const STRIKES: {
  [Kind in StrikeKind]: (stage: Stage, strike: StrikeOf<Kind>, users: Users) => Promise<Undo | null>;
} = {
  kill: async (stage, { part, host }) => {
    await stage.kill(part, host - 1);
    return () => {};
  },
  freeze: async (stage, { part, host }) => {
    stage.freeze(part, host - 1);
    return () => stage.thaw(part, host - 1);
  },
  partition: async ({ link, hosts }, { host, silent }) => {
    const id = hosts[host - 1]?.id;
    if (id === undefined) return null;
    link.partition(id, silent ? 'silent' : 'refusing');
    return () => link.mend(id);
  },
  cut: async ({ link }) => {
    link.cut();
    return () => {};
  },
  // Behaves like a router that has lost the connection state: it drops packets, then resets.
  half_open: async ({ link }) => {
    link.swallow();
    return () => link.cut();
  },
  switch: async ({ promotions }) => {
    await promotions?.switch();
    return promotions && (() => promotions.rejoin());
  },
  lose: async ({ promotions }, _strike, users) => {
    await promotions?.lose(users);
    return promotions && (() => promotions.rejoin());
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
  // Cached keys would last for an hour, so the gateway is restarted as well.
  keys_away: async (stage) => {
    await Promise.all([stage.kill('idp'), stage.kill('gateway')]);
    await stage.stack.start('gateway');
    return () => stage.stack.start('idp');
  },
  // The agents are restarted with a wrong clock, which is corrected while they run.
  clock: async (stage, { ahead_s }) => {
    const agents = [...stage.hosts.keys()];
    await Promise.all(agents.map((host) => stage.kill('agent', host)));
    stage.agentClock.set(ahead_s);
    await Promise.all(agents.map((host) => stage.startPart('agent', host)));
    return () => stage.agentClock.set(0);
  },
};

/** Starts a strike and undoes it after its duration. @returns null if this machine does not support it */
export async function inject(
  stage: Stage,
  strike: Strike,
  users: Users,
): Promise<{ over: Promise<void> } | null> {
  const act = STRIKES[strike.kind] as (stage: Stage, strike: Strike, users: Users) => Promise<Undo | null>;
  const undo = await act(stage, strike, users);
  if (!undo) return null;
  return { over: sleep(strike.ms).then(async () => void (await undo())) };
}

/** A short description for reports. */
export const describeStrike = (strike: Strike): string =>
  [
    strike.kind,
    ...('part' in strike ? [strike.part] : []),
    ...('host' in strike && strike.host > 1 ? [`of host ${strike.host}`] : []),
  ].join(' ');
