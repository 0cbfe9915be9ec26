import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { connectFrom, HERE } from '../host/attempts.ts';
import type { Attack, AttackerSide } from './attack.ts';
import { ATTACKS, type AttackName } from './attacks.ts';

/** What the parent sends once. */
export interface Order {
  name: AttackName;
  side: AttackerSide;
}

/**
 * A process of its own, so that the attacker's work does not delay the victim's clients, and so that it can
 * be killed.
 */
const counts: Record<string, number> = {};
const count = (name: string, n = 1) => {
  counts[name] = (counts[name] ?? 0) + n;
};

// The parent has ended, in whatever way: so must this.
process.on('disconnect', () => process.exit());
process.on('unhandledRejection', () => count('unhandled'));

const [{ name, side }] = (await once(process, 'message')) as [Order];
const end = performance.now() + side.durationMs;
const goesOn = () => performance.now() < end;
const attack: Attack = ATTACKS[name];

await Promise.race([
  attack.run({
    ...side,
    goesOn,
    count,
    async connect(port) {
      const client = await connectFrom(HERE, side.targets[port]);
      count('logins');
      client.on('error', () => count('sessions ended'));
      return client;
    },
    async repeat(work, pauseMs = 250) {
      while (goesOn()) {
        await work().catch((error: { code?: string; message?: string }) =>
          count(`failed: ${error.code ?? String(error.message).slice(0, 60)}`),
        );
        await sleep(pauseMs);
      }
    },
  }),
  // A statement that is not answered any more must not prolong the attack.
  sleep(side.durationMs + 200),
]).catch((error) => count(`attack failed: ${String(error).slice(0, 100)}`));
process.send?.(counts, () => process.exit());
