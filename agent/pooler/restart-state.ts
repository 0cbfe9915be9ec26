import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { AgentSettings } from '../process/settings.ts';

/** PgBouncer serves the pooled port. The standby gets the new clients while PgBouncer is restarted. */
export type Instance = 'main' | 'standby';

/**
 * Where a restart stands. A killed agent leaves it, and the next one continues from there. `starting`: the
 * standby starts. `away`: the standby gets the new clients, and `main` is restarted once its own have left.
 * `back`: the new `main` gets them, and the standby ends once its own have left.
 */
const PHASES = {
  none: { newClients: 'main', both: false },
  starting: { newClients: 'main', both: true },
  away: { newClients: 'standby', both: true },
  back: { newClients: 'main', both: true },
} as const satisfies Record<string, { newClients: Instance; both: boolean }>;

export type Phase = keyof typeof PHASES;

const State = z.object({
  phase: z.enum(Object.keys(PHASES) as [Phase, ...Phase[]]),
  /** When the phase began; of `none`: when the last restart ended. */
  since: z.iso.datetime(),
  /** Why the last restart was given up; null otherwise. */
  failure: z.string().nullable(),
});
export type RestartState = z.output<typeof State>;

type Folder = Pick<AgentSettings, 'STATE_DIR'>;

const folderOf = ({ STATE_DIR }: Folder) => join(STATE_DIR, 'pooler');
const stateFile = (settings: Folder) => join(folderOf(settings), 'restart.json');
const askedFile = (settings: Folder) => join(folderOf(settings), 'asked');

/** While it exists, systemd runs the standby. The agent therefore needs no right to start a service. */
export const standbyMark = (settings: Folder) => join(folderOf(settings), 'standby');

const NEVER: RestartState = { phase: 'none', since: new Date(0).toISOString(), failure: null };

/**
 * Without a readable file there is no restart, unless the mark shows that a standby may still have clients.
 */
export function readRestart(settings: Folder): RestartState {
  const found = readStateFile(settings);
  if (found === 'damaged') return { ...NEVER, phase: existsSync(standbyMark(settings)) ? 'back' : 'none' };
  return found ?? NEVER;
}

/** Replaces a damaged file by the state that is read instead. @returns whether it was damaged */
export function repairRestart(settings: Folder): boolean {
  if (readStateFile(settings) !== 'damaged') return false;
  writeRestart(settings, readRestart(settings).phase, 'the record of the restart was damaged');
  return true;
}

function readStateFile(settings: Folder): RestartState | 'damaged' | null {
  const path = stateFile(settings);
  if (!existsSync(path)) return null;
  const text = readFileSync(path, 'utf8');
  try {
    return State.parse(JSON.parse(text));
  } catch {
    return 'damaged';
  }
}

export function writeRestart(settings: Folder, phase: Phase, failure: string | null = null): void {
  const state: RestartState = { phase, since: new Date().toISOString(), failure };
  put(`${stateFile(settings)}.new`, JSON.stringify(state));
  renameSync(`${stateFile(settings)}.new`, stateFile(settings));
}

/** Asks the running agent for a restart. */
export const askForRestart = (settings: Folder) => put(askedFile(settings), '');
export const isAskedFor = (settings: Folder) => existsSync(askedFile(settings));
export const forgetAsking = (settings: Folder) => rmSync(askedFile(settings), { force: true });

export const wantStandby = (settings: Folder) => put(standbyMark(settings), '');
export const unwantStandby = (settings: Folder) => rmSync(standbyMark(settings), { force: true });

/** The instance that new clients reach, and the other one if it may run as well. */
export function instancesNow(settings: Folder): { newClients: Instance; other: Instance | null } {
  const { newClients, both } = PHASES[readRestart(settings).phase];
  return { newClients, other: both ? (newClients === 'main' ? 'standby' : 'main') : null };
}

function put(path: string, text: string) {
  mkdirSync(join(path, '..'), { recursive: true, mode: 0o750 });
  writeFileSync(path, text, { mode: 0o640, flush: true });
}
