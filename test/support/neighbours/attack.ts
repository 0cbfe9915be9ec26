import type pg from 'pg';
import type { Role } from '../../../edge/database/column-types.ts';
import type { BranchRole } from '../../../shared/branch/login.ts';
import type { Target } from '../host/attempts.ts';
import type { Port } from '../host/host-project.ts';

/** A project of the attacker, with its branches besides `main`. */
export interface AttackerProject {
  id: string;
  branches: string[];
}

/** What an attacker knows and may use. It is sent to the attacker's process as JSON. */
export interface AttackerSide {
  /** Its own branch with the login of the attack. */
  targets: Record<Port, Target>;
  /** The same login of all of its branches, `main` first. */
  branchTargets: Record<Port, Target>[];
  /** Branches of the victim, with a wrong password. */
  victim: Record<Port, Target>;
  /** Requests to the API. */
  api: { url: string; token: string; projects: AttackerProject[] };
  durationMs: number;
}

export interface Attacker extends AttackerSide {
  /** False once the duration is over. */
  readonly goesOn: () => boolean;
  /** A session of the attack's login; one that the server ends is counted as `sessions ended`. */
  connect: (port: Port) => Promise<pg.Client>;
  /** Repeats `work` until the duration is over; a failure is counted by its code and followed by a pause. */
  repeat: (work: () => Promise<unknown>, pauseMs?: number) => Promise<void>;
  /** Counts what the attack achieved. */
  count: (name: string, n?: number) => void;
}

/** Sizes that an attack can make grow, see `growth.ts`. */
export const VOLUMES = ['log', 'temporary files', 'notifications', 'wal'] as const;
export type Volume = (typeof VOLUMES)[number];

export const REVOCATIONS = ['rule', 'rotation', 'deletion'] as const;
export type Revocation = (typeof REVOCATIONS)[number];

export interface Attack {
  /** The kind of attack, which test titles show: the number of its row, also of a later review. */
  row: number | `${number}.${number}`;
  /** The weakest login that can do it; null for a client without credentials. */
  login: BranchRole | null;
  /** The role in its tenant, where it attacks by the API; the owner if it is left out. */
  member?: Role;
  /** Statements that the owner of each `main` of the attacker runs before. */
  setUp?: string;
  /**
   * The attacker's address, where the victim must have another one, because the packet filter counts by
   * address.
   */
  from?: string;
  /** Branches that each project has besides `main`. */
  branches?: number;
  /** Projects that it has, each with a `main`. One by default. */
  projects?: number;
  /** Storage quota of each project, where the default is too small. */
  quotaGib?: number;
  /** Its sessions are those of the table browser, which neither a network rule nor a password concerns. */
  isByApi?: true;
  /** Duration in milliseconds, where it differs from the usual one. */
  durationMs?: number;
  run: (attacker: Attacker) => Promise<void>;
  /** Whether only processor and disk are shared, so that the victim's latency is bounded too. */
  boundsLatency?: true;
  /**
   * How access is revoked during the attack in `npm test`; null where the attacker has none, or must be ended
   * without.
   */
  revocation: Revocation | null;
  /**
   * The host has to end the attacker's sessions without a revocation, and to say so in the project's record.
   */
  blockedFor?: string;
  /** Bytes by which each volume may grow. */
  growth?: Partial<Record<Volume, number>>;
  /** Milliseconds that another tenant's rotation may take. */
  rotationWithinMs?: number;
  /** Counts that the attacker reaches if the attack is one. */
  least?: Record<string, number>;
  /** Counts of the attacker that must not be exceeded. */
  most?: Record<string, number>;
  /** It needs a packet filter in front of both ports. */
  needsFirewall?: true;
  /** It fills the volume of PostgreSQL's data, which has to be a small one. */
  needsSmallVolume?: true;
}

export const MIB = 2 ** 20;
/** No attack writes more than this, so that the machine's disk never fills. */
export const FLOOD_BYTES = 300 * MIB;
