import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { HostMember, StandbyReply } from '../../shared/protocol/standby.ts';
import { writeState } from '../link/identity.ts';
import type { AgentSettings } from '../process/settings.ts';

/** Which member of a host and its standby this machine is: `STATE_DIR/member.json`. */
const StoredMember = z.object({
  ...HostMember.shape,
  /** Of a standby: false while its data is being copied. */
  copied: z.boolean(),
  /** A promotion that has begun and not ended. */
  promoting: z.boolean(),
  survived_until: z.iso.datetime().nullable(),
  /** Of a standby. */
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

export const writeMember = (settings: StateDir, member: StoredMember): Promise<void> =>
  writeState(fileOf(settings), member);

/** What both servers of a member need to know before they open a port. */
export const NEW_MEMBER = { copied: true, promoting: false, survived_until: null, primary: null } as const;

/** Files of a standby below `STATE_DIR`. */
export const standbyFiles = ({ STATE_DIR }: StateDir) => ({
  /** Settings of PostgreSQL, which its configuration includes. */
  settings: join(STATE_DIR, 'standby.conf'),
  password: join(STATE_DIR, 'standby.pgpass'),
  authority: join(STATE_DIR, 'primary-ca.crt'),
});
