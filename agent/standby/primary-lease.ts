import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { MEMBER_PATH, MEMBER_TYPE, MemberReply } from '../../shared/protocol/standby.ts';
import { signedRequest } from '../link/host-certificate.ts';
import { type HostIdentity, readIdentity, writeState } from '../link/identity.ts';
import { repeat } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { claimName } from '../upgrade/program-file.ts';
import { postmasterOf } from './base-copy.ts';
import { readMember, refuseMember, type StoredMember } from './stored-member.ts';

/**
 * The lease of a primary whose standby may take its place by itself: `STATE_DIR/lease.json`. All times are seconds since the
 * machine was started. They count while it is suspended, and no clock that somebody sets changes them.
 */
const Lease = z.strictObject({
  boot: z.string(),
  /** Null: the gateway has said that none is needed. */
  until: z.number().nullable(),
});

const fileOf = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>) => join(STATE_DIR, 'lease.json');
const bootOf = () => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** @param until seconds since the start of the machine */
export const storeLease = (settings: AgentSettings, until: number | null): Promise<void> =>
  writeState(fileOf(settings), { boot: bootOf(), until } satisfies z.input<typeof Lease>);

function readUntil(settings: AgentSettings): number | null {
  try {
    const { boot, until } = Lease.parse(JSON.parse(readFileSync(fileOf(settings), 'utf8')));
    return boot === bootOf() ? until : 0;
  } catch {
    return 0;
  }
}

/** How long each lease of a host is, or was before it was fenced; null: it needs none. */
const secondsOf = (stored: StoredMember | null): number | null =>
  stored === null || stored.role === 'standby' || stored.role === 'copying' ? null : stored.lease_seconds;

function leftOf(settings: AgentSettings, stored: StoredMember | null): number {
  if (secondsOf(stored) === null) return Number.POSITIVE_INFINITY;
  if (stored?.role === 'fenced') return 0;
  const until = readUntil(settings);
  return until === null ? Number.POSITIVE_INFINITY : until - uptime();
}

/** Seconds for which this primary may serve; `Infinity`: until it is closed. */
export const leaseLeft = (settings: AgentSettings): number => leftOf(settings, readMember(settings));

/** The result of one poll. */
interface Found {
  /** Duration of each lease. */
  seconds: number;
  /** Seconds until it ends. */
  left: number;
  /** The process of PostgreSQL; null: it does not run. */
  pid: number | null;
}

/** Null: PostgreSQL does not have to be ended. That of a fenced host has been, and does not start again. */
function poll(settings: AgentSettings): Found | null {
  const stored = readMember(settings);
  const seconds = secondsOf(stored);
  const pid = postmasterOf(settings.PGDATA_DIR);
  if (seconds === null || (stored?.role === 'fenced' && pid === null)) return null;
  return { seconds, left: leftOf(settings, stored), pid };
}

const REPLY_WITHIN_MS = 10_000;

/**
 * Asks for what the gateway has on record of this host, and renews its lease, which begins before the question.
 * @throws Error when the gateway cannot be reached, or does not know the host
 */
export async function askMember(
  settings: AgentSettings,
  identity: HostIdentity,
  within = REPLY_WITHIN_MS,
): Promise<z.output<typeof MemberReply>> {
  const seconds = secondsOf(readMember(settings));
  const askedAt = uptime();
  // The gateway may grant a lease whose reply is lost, so store the lease first. If storing fails, do not renew.
  const renew =
    seconds !== null &&
    (await storeLease(settings, readUntil(settings) ?? askedAt + seconds).then(
      () => true,
      () => false,
    ));
  const reply = await signedRequest(
    settings.GATEWAY_URL ?? '',
    identity,
    { path: MEMBER_PATH, typ: MEMBER_TYPE, claims: { renew, lease_seconds: seconds }, within },
    MemberReply,
  );
  if (reply.role === 'fenced') await refuseMember(settings, reply.generation);
  if (reply.is_renewed && reply.lease_seconds !== null)
    await storeLease(settings, askedAt + reply.lease_seconds);
  else if (seconds !== null && reply.role === 'primary' && reply.lease_seconds === null)
    await storeLease(settings, null);
  return reply;
}

const LOOK_EVERY_MS = 250;
const GUARD_EVERY_MS = 2_000;
/** Shares of a lease: between two renewals, after a failed one, and for an orderly shutdown at its end. */
const SHARES = { renew: 1 / 6, retry: 1 / 20, close: 1 / 10 };

/**
 * Ends PostgreSQL when the lease has ended: by an orderly shutdown shortly before, and by an immediate one then. The service
 * manager starts it again, which waits for another lease.
 */
class Closing {
  #asked: number | null = null;

  end({ seconds, left, pid }: Found): void {
    if (pid === null || left > seconds * SHARES.close) return;
    if (left > 0 && this.#asked === pid) return;
    this.#asked = pid;
    try {
      process.kill(pid, left > 0 ? 'SIGINT' : 'SIGQUIT');
    } catch {
      // The process has ended.
    }
  }
}

/** One guard for each host, however many agents have started one. */
const guardName = ({ STATE_DIR }: AgentSettings) =>
  `branchgate-lease-${createHash('sha256').update(STATE_DIR).digest('hex').slice(0, 32)}`;

/** Returns whether there is a process that ends PostgreSQL with its lease. */
export const isGuarded = (settings: AgentSettings): boolean =>
  readFileSync('/proc/net/unix', 'utf8').includes(`@${guardName(settings)}`);

/**
 * A process of its own, which renews the lease and ends PostgreSQL when that fails, also while the agent is away or stuck. It
 * ends when no lease is needed any more, or when PostgreSQL and the agent have ended and no server may start by a lease.
 */
export async function guardLease(settings: AgentSettings): Promise<void> {
  const identity = await readIdentity(settings.STATE_DIR);
  let release = identity && (await claimName(guardName(settings)));
  if (!identity) return;
  const parent = process.ppid;
  const closing = new Closing();
  let asking: Promise<void> | null = null;
  let askAt = 0;
  while (release) {
    const found = poll(settings);
    if (found === null) return release();
    const isRunning = found.pid !== null;
    if (!isRunning && process.ppid !== parent && found.left <= 0) {
      await release();
      // A gate stores a lease before it asks whether there is a guard.
      if (leaseLeft(settings) <= 0) return;
      release = await claimName(guardName(settings));
      continue;
    }
    closing.end(found);
    const { seconds } = found;
    // A primary whose PostgreSQL does not run loses its place.
    if (isRunning && asking === null && uptime() >= askAt) {
      asking = askMember(settings, identity, Math.min(REPLY_WITHIN_MS, seconds * 250))
        .then(
          ({ is_renewed }) => is_renewed,
          () => false,
        )
        .then((isRenewed) => {
          askAt = uptime() + seconds * (isRenewed ? SHARES.renew : SHARES.retry);
          asking = null;
        });
    }
    await sleep(LOOK_EVERY_MS);
  }
}

/** The agent's part: it starts the guard, and ends PostgreSQL too if the guard is stuck. */
export async function watchLease(settings: AgentSettings, signal: AbortSignal): Promise<void> {
  const closing = new Closing();
  let guardedAt = Number.NEGATIVE_INFINITY;
  const look = async () => {
    const found = poll(settings);
    if (found === null) return;
    closing.end(found);
    if (performance.now() - guardedAt <= GUARD_EVERY_MS) return;
    guardedAt = performance.now();
    if (!isGuarded(settings)) startGuard();
  };
  await repeat(look, LOOK_EVERY_MS, signal);
}

function startGuard(): void {
  const [, program = ''] = process.argv;
  const guard = spawn(process.execPath, [...process.execArgv, program, 'guard-lease'], {
    detached: true,
    stdio: 'ignore',
  });
  guard.on('error', () => {});
  guard.unref();
}
