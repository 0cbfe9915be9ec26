import { connect as connectSocket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { attempt, connectFrom, HERE, OUTSIDE, type Target } from '../../host/attempts.ts';
import type { Port } from '../../host/host-project.ts';
import { stalledLogin } from '../../host/stalled-login.ts';
import type { Attack, Attacker } from '../attack.ts';

const BURST_BRANCHES = 4;
const DIRECT_BURST = 420;
const POOLED_BURST = 250;
const SILENT_SOCKETS: Record<Port, number> = { direct: 900, pooled: 250 };
const STALLED_LOGINS = 150;
/** An address that the victim's rules admit, and that the victim does not use. */
export const ADMITTED_STRANGER = '127.0.0.3';
const CROWDED = '127.0.0.4';
const WRONG_PASSWORD_EVERY_MS = 100;

/**
 * From one address, which the victim does not use. All in parallel and over several branches, because
 * attempts are limited by branch, once the first are in the log.
 */
async function holdMany(
  { branchTargets, goesOn, count }: Attacker,
  { port, many }: { port: Port; many: number },
): Promise<void> {
  const targets = branchTargets.map((ports) => ports[port]);
  const hold = async (target: Target) => {
    while (goesOn()) {
      try {
        const client = await connectFrom(CROWDED, target);
        count('connections');
        const ended = new Promise((resolve) => client.once('end', resolve));
        await client.query('begin');
        await ended;
        count('sessions ended');
      } catch (error) {
        count(`refused: ${String((error as Error).message).slice(0, 60)}`);
      }
      await sleep(500);
    }
  };
  const all = Array.from({ length: many }, (_, n) => hold(targets[n % targets.length] as Target));
  await Promise.race([Promise.all(all), untilOver(goesOn)]);
}

export const directConnections: Attack = {
  row: 3,
  login: 'read_only',
  branches: BURST_BRANCHES - 1,
  from: CROWDED,
  run: (attacker) => holdMany(attacker, { port: 'direct', many: DIRECT_BURST }),
  needsFirewall: true,
  revocation: 'rule',
};

/** Each has a transaction open, and so keeps a session of the pooler with PostgreSQL. */
export const pooledConnections: Attack = {
  row: 3,
  login: 'read_only',
  branches: BURST_BRANCHES - 1,
  from: CROWDED,
  run: (attacker) => holdMany(attacker, { port: 'pooled', many: POOLED_BURST }),
  revocation: 'rotation',
};

const PROJECTS = 10;
/** Together more than a tenant may have, and below the attempts of a branch that an address has in a minute. */
const HELD_OF_BRANCH: Record<Port, number> = { direct: 24, pooled: 24 };
/**
 * Logins that are under way. A burst would fail for another reason: more of them than the machine completes wait in the
 * queue of PostgreSQL's port, and those of others behind them, which the packet filter prevents.
 */
const LOGINS_AT_ONCE = 4;

/** Several projects of one tenant, each below the limit of a project. */
export const manyProjects: Attack = {
  row: '2.2',
  login: 'read_only',
  projects: PROJECTS,
  from: CROWDED,
  durationMs: 60_000,
  run: async ({ branchTargets, goesOn, count }) => {
    const hold = async (target: Target) => {
      try {
        const client = await connectFrom(CROWDED, target);
        count('connections');
        client.on('end', () => count('sessions ended'));
      } catch (error) {
        count(`refused: ${String((error as Error).message).slice(0, 60)}`);
      }
    };
    const due = (['direct', 'pooled'] as const)
      .flatMap((port) =>
        Array.from({ length: HELD_OF_BRANCH[port] }, () => branchTargets.map((ports) => ports[port])),
      )
      .flat()
      .values();
    const holdNext = async () => {
      for (const target of due) {
        if (!goesOn()) return;
        await hold(target);
      }
    };
    await Promise.all(Array.from({ length: LOGINS_AT_ONCE }, holdNext));
    await untilOver(goesOn);
  },
  revocation: null,
  // More than a tenant may have, so the host ends some.
  least: { connections: 181, 'sessions ended': 1 },
};

/** Sockets from an address that no rule admits send nothing; one that the server closes is opened again. */
export const silentSockets: Attack = {
  row: 4,
  login: null,
  run: async ({ targets, goesOn, count }) => {
    const keepOpen = async (port: number) => {
      while (goesOn()) {
        const socket = connectSocket({ port, host: HERE, localAddress: OUTSIDE });
        socket.on('error', () => {});
        socket.on('connect', () => count('sockets'));
        await new Promise((resolve) => socket.once('close', resolve));
        await sleep(500);
      }
    };
    const all = (['direct', 'pooled'] as const).flatMap((port) =>
      Array.from({ length: SILENT_SOCKETS[port] }, () => keepOpen(targets[port].port)),
    );
    await Promise.race([Promise.all(all), untilOver(goesOn)]);
  },
  revocation: null,
  needsFirewall: true,
};

/** Wrong passwords against the victim's branch, from an address that its rules admit. */
export const wrongPasswords: Attack = {
  row: 11,
  login: null,
  // The limit is reached after some seconds, and the victim connects every few seconds.
  durationMs: 15_000,
  run: async ({ victim, repeat, count }) => {
    await Promise.all(
      (['direct', 'pooled'] as const).map((port) =>
        repeat(async () => count(await attempt(victim[port], ADMITTED_STRANGER)), WRONG_PASSWORD_EVERY_MS),
      ),
    );
  },
  revocation: null,
};

/**
 * Logins that never respond to the server's challenge: another branch's rotation waits for all that are under
 * way.
 */
export const stalledLogins: Attack = {
  row: 12,
  login: 'read_only',
  from: CROWDED,
  run: async ({ targets, goesOn, count }) => {
    const keepStalled = async (target: Target) => {
      while (goesOn()) {
        try {
          const socket = await stalledLogin(target, CROWDED);
          count('stalled');
          await new Promise((resolve) => socket.once('close', resolve));
        } catch (error) {
          count(`refused: ${String((error as Error).message).slice(0, 60)}`);
        }
        await sleep(500);
      }
    };
    const all = Array.from({ length: STALLED_LOGINS }, () => keepStalled(targets.direct));
    await Promise.race([Promise.all(all), untilOver(goesOn)]);
  },
  revocation: 'rotation',
  // Without one, each that is refused costs a handshake, and the client repeats it.
  needsFirewall: true,
  // A stalled login lasts for 10 s. How much less a rotation takes depends on what else runs on the machine.
  rotationWithinMs: 8_000,
};

async function untilOver(goesOn: () => boolean): Promise<void> {
  while (goesOn()) await sleep(50);
}
