import { uptime } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { z } from 'zod';
import type { MemberReply } from '../../shared/protocol/standby.ts';
import { closeRuleFiles } from '../access/rule-files.ts';
import { readIdentity } from '../link/identity.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { askMember, isGuarded, storeLease } from './primary-lease.ts';
import { noteMember, readMember, type StoredMember } from './stored-member.ts';

const ASK_EVERY_MS = 5_000;
const NOT_GUARDED =
  'the agent of this host does not run, which ends PostgreSQL when its standby may take its place: start it';

interface Waiting {
  /** Until they may, instead of a failure. */
  wait: boolean;
  /** Called with what it waits for, once for each reason. */
  say: (reason: string) => void;
}

/**
 * Returns whether the servers of this host may start. A primary with a standby asks the gateway first, because the standby may have
 * taken its place while this machine was away.
 * @returns why not; null: they may
 */
export async function hindranceToOpen(
  settings: AgentSettings,
  { wait, say }: Waiting,
): Promise<string | null> {
  let said = '';
  for (;;) {
    const hindrance = await examine(settings);
    if (hindrance === null || !wait) return hindrance;
    if (hindrance !== said) say(hindrance);
    said = hindrance;
    await sleep(ASK_EVERY_MS);
  }
}

async function examine(settings: AgentSettings): Promise<string | null> {
  const stored = readMember(settings);
  const known = hindranceOf(stored);
  if (known !== null || !isServing(stored)) return known;
  if (stored.standby_id === null && !stored.closing) return null;
  const identity = await readIdentity(settings.STATE_DIR);
  if (!identity || !settings.GATEWAY_URL)
    return 'this host has a standby, and no identity or no GATEWAY_URL with which to ask for its role';
  // Check the guard before asking for a lease, which would keep the place of a host that never serves.
  if (stored.lease_seconds !== null && !isGuarded(settings)) return NOT_GUARDED;
  let record: z.output<typeof MemberReply>;
  try {
    record = await askMember(settings, identity);
  } catch (error) {
    return `this host has a standby, which may have taken its place, and the gateway does not answer (${(error as Error).message})`;
  }
  // The agent may have stored a newer record meanwhile.
  const present = readMember(settings) ?? stored;
  const left = hindranceOf(present);
  if (left !== null) return left;
  if (record.role !== 'primary') return 'the gateway does not have this host on record as a primary';
  if (record.lease_seconds !== present.lease_seconds) return changeLease(settings, record);
  if (record.lease_seconds !== null && !record.is_renewed)
    return 'the gateway gives this host no lease, because its standby may take its place';
  // Nor after: it stays from then on until PostgreSQL has started.
  if (record.lease_seconds !== null && !isGuarded(settings)) return NOT_GUARDED;
  // An agent that was killed while it closed this host may have left the rules.
  if (record.closing || present.closing) await closeRuleFiles(rulesFolder(settings));
  return null;
}

/** Begins to need a lease before it asks for one, or ends to. */
async function changeLease(
  settings: AgentSettings,
  { lease_seconds }: z.output<typeof MemberReply>,
): Promise<string | null> {
  if (lease_seconds !== null) await storeLease(settings, uptime());
  await noteMember(settings, { lease_seconds });
  return examine(settings);
}

const isServing = (stored: StoredMember | null): stored is StoredMember =>
  stored?.role === 'primary' || stored?.role === 'promoting';

function hindranceOf(stored: StoredMember | null): string | null {
  if (stored?.role === 'fenced')
    return 'another host has taken the place of this one, so its servers stay closed: run `branchgate-agent rejoin` to make it the standby of that host';
  if (stored?.role === 'copying')
    return 'the copy of the primary is not complete: run `branchgate-agent rejoin`';
  return null;
}
