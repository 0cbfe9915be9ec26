import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { HostMember, StandbyReply } from '../../shared/protocol/standby.ts';
import { writeState } from '../link/identity.ts';
import type { AgentSettings } from '../process/settings.ts';
import { claimName } from '../upgrade/program-file.ts';
import { type Action, type Event, eventOf, STATES, type State, TRANSITIONS } from './states.ts';

/** Which member of a host and its standby this machine is: `STATE_DIR/member.json`. */
const StoredMember = z.object({
  ...HostMember.shape,
  /** The state of `states.ts`, instead of the role of the record. */
  role: z.enum(STATES).exclude(['none']),
  survived_until: z.iso.datetime().nullable(),
  /** Columns of a standby. */
  primary: StandbyReply.nullable(),
});
export type StoredMember = z.output<typeof StoredMember>;

type StateDir = Pick<AgentSettings, 'STATE_DIR'>;

const fileOf = ({ STATE_DIR }: StateDir) => join(STATE_DIR, 'member.json');

/**
 * @returns null for a host that never had a standby and is none
 * @throws Error when the file is damaged: the host stays closed then
 */
export function readMember(settings: StateDir): StoredMember | null {
  let text: string;
  try {
    text = readFileSync(fileOf(settings), 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
  return StoredMember.parse(JSON.parse(text));
}

/** Values of a member that has neither been promoted nor copied. */
export const NEW_MEMBER = { survived_until: null, primary: null } as const;

const LOCK_EVERY_MS = 10;
const LOCK_WITHIN_MS = 10_000;

/** Runs one writer of the file at a time: agent, gate, guard and control tool are processes of their own. */
async function withMemberLock<T>(settings: StateDir, work: () => Promise<T>): Promise<T> {
  const digest = createHash('sha256').update(settings.STATE_DIR).digest('hex').slice(0, 32);
  const deadline = performance.now() + LOCK_WITHIN_MS;
  for (;;) {
    const release = await claimName(`branchgate-member-${digest}`);
    if (release) return work().finally(release);
    if (performance.now() > deadline) throw new Error('another process is writing the role of this host');
    await sleep(LOCK_EVERY_MS);
  }
}

interface Transition {
  before: StoredMember | null;
  /** The member from now on. */
  stored: StoredMember | null;
  action: Action;
}

type Fields = Partial<Omit<StoredMember, 'role'>>;

/**
 * Looks the event up in the table of states, and stores the next state.
 * @param change the other fields that are stored with it
 */
export const moveMember = (settings: StateDir, event: Event, change: Fields = {}): Promise<Transition> =>
  withMemberLock(settings, () => write(settings, event, change));

async function write(settings: StateDir, event: Event, change: Fields): Promise<Transition> {
  const before = readMember(settings);
  const { to, action } = TRANSITIONS[stateOf(before)][event];
  if (to === 'none' || action === 'ignore' || action === 'reject' || action === 'stop')
    return { before, stored: before, action };
  const stored = StoredMember.parse({ ...NO_RECORD, ...before, ...change, role: to });
  await writeState(fileOf(settings), stored);
  return { before, stored, action };
}

const NO_RECORD = { ...NEW_MEMBER, generation: 0, closing: false, standby_id: null, lease_seconds: null };

const stateOf = (stored: StoredMember | null): State => stored?.role ?? 'none';

/**
 * Applies a record of the gateway. An older record is ignored, and so is that of a host without a standby, which needs no file.
 * @param beginLease called before a record is stored with which this host begins to need a lease
 */
export const recordMember = (
  settings: StateDir,
  record: HostMember,
  beginLease: () => Promise<void>,
): Promise<Transition> =>
  withMemberLock(settings, async () => {
    const before = readMember(settings);
    if (before ? record.generation < before.generation : isAlone(record))
      return { before, stored: before, action: 'ignore' };
    const { role: _, ...fields } = record;
    const event = eventOf(record);
    const { to } = TRANSITIONS[stateOf(before)][event];
    const isFenced = to === 'fenced';
    const isServing = to === 'primary' || to === 'promoting';
    // The gate may have begun the lease already.
    if (isServing && record.lease_seconds !== null && before?.lease_seconds == null) await beginLease();
    // The guard of a fenced host's lease watches until PostgreSQL has ended.
    const lease_seconds = isFenced ? (before?.lease_seconds ?? null) : record.lease_seconds;
    return write(settings, event, { ...fields, lease_seconds });
  });

const isAlone = ({ role, closing, standby_id }: HostMember) =>
  role === 'primary' && !closing && standby_id === null;

/** Fences this host, because the gateway has said that a record of this generation does. */
export const refuseMember = (settings: StateDir, generation: number): Promise<void> =>
  withMemberLock(settings, async () => {
    // The agent may have stored a newer record since the question.
    if (generation >= (readMember(settings)?.generation ?? 0))
      await write(settings, 'refused', { generation });
  });

/** Stores fields whose change is no event: the state stays. */
export const noteMember = (settings: StateDir, change: Fields): Promise<StoredMember | null> =>
  withMemberLock(settings, async () => {
    const present = readMember(settings);
    const stored = present && { ...present, ...change };
    if (stored) await writeState(fileOf(settings), stored);
    return stored;
  });

/** Files of a standby below `STATE_DIR`. */
export const standbyFiles = ({ STATE_DIR }: StateDir) => ({
  /** Settings of PostgreSQL, which its configuration includes. */
  settings: join(STATE_DIR, 'standby.conf'),
  password: join(STATE_DIR, 'standby.pgpass'),
  authority: join(STATE_DIR, 'primary-ca.crt'),
});
