import { join } from 'node:path';
import { z } from 'zod';

const Port = z.coerce.number().int().min(1).max(65_535);
const Folder = z.string().startsWith('/');

const Settings = z.object({
  /** Base address of the gateway that the agent dials; needed by `run`. */
  GATEWAY_URL: z.url({ protocol: /^https?$/ }).optional(),
  /** The agent's own folder: its key (`host.json`) and, in `rules/`, the rule files it writes for both servers. */
  STATE_DIR: Folder.default('/var/lib/branchgate'),
  /** Folder of PostgreSQL's unix socket. */
  POSTGRES_SOCKET_DIR: Folder.default('/var/run/postgresql'),
  /** Port of PostgreSQL (spec 2.5: direct). */
  POSTGRES_PORT: Port.default(5432),
  /** PostgreSQL's data directory: tried for copy-on-write, searched for what a crash left behind. */
  PGDATA_DIR: Folder.default('/var/lib/postgresql/18/main'),
  /** Folder of PgBouncer's unix socket. */
  POOLER_SOCKET_DIR: Folder.default('/var/run/postgresql'),
  /** Port of PgBouncer (spec 2.5: pooled). */
  POOLER_PORT: Port.default(6432),
});

export type AgentSettings = z.output<typeof Settings>;

/**
 * @param env variables by name; an empty one counts as missing
 * @throws Error that names each variable that is missing or wrong, never its value
 */
export function readSettings(env: Record<string, string | undefined>): AgentSettings {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''));
  const reading = Settings.safeParse(given);
  if (reading.success) return reading.data;
  const names = [...new Set(reading.error.issues.map((issue) => String(issue.path[0])))];
  throw new Error(`missing or invalid settings: ${names.join(', ')}`);
}

/** Folder of the generated rule files, which both servers' configuration includes. */
export const rulesFolder = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>) => join(STATE_DIR, 'rules');
