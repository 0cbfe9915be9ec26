import { join } from 'node:path';
import { z } from 'zod';
import { readCidr } from '../../shared/cidr.ts';
import { PROJECT_FILES_MAX } from '../../shared/limits.ts';
import { faultsOf } from '../../shared/setting-range.ts';
import { DEFAULT_STATE_DIR } from './state-dir.ts';

/** Whose connection attempts count together. */
const ATTEMPT_SCOPES = ['branch', 'address'] as const;

const Port = z.coerce.number().int().min(1).max(65_535);
/** Names of extensions. */
const Names = z
  .string()
  .regex(/^(?:[a-z0-9_-]+(?:,[a-z0-9_-]+)*)?$/)
  .meta({ form: 'names, comma-separated' })
  .default('')
  .transform((names) => names.split(',').filter(Boolean));
const Path = z.string().startsWith('/').meta({ form: 'absolute path' });

const Settings = z.object({
  /** Base address of the gateway that the agent dials; required by `run`. */
  GATEWAY_URL: z.url({ protocol: /^https?$/ }).optional(),
  /**
   * The agent's own folder: its key (`host.json`) and, in `rules/`, the rule files it writes for both
   * servers.
   */
  STATE_DIR: Path.default(DEFAULT_STATE_DIR),
  /** Folder of PostgreSQL's unix socket. */
  POSTGRES_SOCKET_DIR: Path.default('/var/run/postgresql'),
  /** Port of PostgreSQL (specification 2.5: direct). */
  POSTGRES_PORT: Port.default(5432),
  /** Folder of `pg_dump`, of version 18 or later. */
  POSTGRES_BIN: Path.default('/usr/lib/postgresql/18/bin'),
  /** PostgreSQL's data directory: tested for copy-on-write, and searched for leftovers of a crash. */
  PGDATA_DIR: Path.default('/var/lib/postgresql/18/main'),
  /** Folder of PgBouncer's unix socket. */
  POOLER_SOCKET_DIR: Path.default('/var/run/postgresql'),
  /** Port of PgBouncer (specification 2.5: pooled). */
  POOLER_PORT: Port.default(6432),
  /**
   * Port of the PgBouncer that gets the new clients while PgBouncer is restarted; 0: PgBouncer is never
   * restarted.
   */
  POOLER_STANDBY_PORT: z.coerce.number().int().min(0).max(65_535).default(0),
  /** PgBouncer's own caches above which it is restarted; 0: only on request. */
  /** Time for clients to leave a PgBouncer that is about to end. */
  POOLER_DRAIN_SECONDS: z.coerce.number().int().min(1).max(86_400).default(600),
  /** PgBouncer's log, in which connection attempts are counted. */
  POOLER_LOG: Path.default('/var/log/postgresql/pgbouncer.log'),
  /** Port of SQL over WebSocket, at the addresses of PostgreSQL; 0: off. */
  SQL_PORT: z.coerce.number().int().min(0).max(65_535).default(443),
  /** Client connections through the pooler (specification 8: 200, up to 500). */
  POOLER_MAX_CLIENTS: z.coerce.number().int().min(200).max(500).default(200),
  /** Connections to one branch's database, direct and pooled together. */
  BRANCH_CONNECTIONS: z.coerce.number().int().min(10).max(1000).default(60),
  /** Connections that the pooler opens for one login of a branch. */
  BRANCH_POOL_SIZE: z.coerce.number().int().min(1).max(500).default(20),
  /** Attempts to connect to one branch (specification 8: 50). */
  CONNECTION_ATTEMPTS_PER_MINUTE: z.coerce.number().int().min(10).max(10_000).default(50),
  /**
   * Whose attempts count together: all on the branch (specification 8), or those of each client address, so that
   * nobody locks out others with wrong passwords.
   */
  CONNECTION_ATTEMPTS_SCOPE: z.enum(ATTEMPT_SCOPES).default('branch'),
  /** Whether the network rules are published to a packet filter as well, which needs CAP_NET_ADMIN. */
  FIREWALL: z.enum(['off', 'nftables']).default('off'),
  /** Extensions that the owners of branches may create although they are not trusted, comma-separated. */
  EXTENSIONS: Names,
  /** Extensions that a project can be created with, comma-separated. Owners can neither create nor change them. */
  PROJECT_EXTENSIONS: Names,
  /**
   * Networks that are not public in which a project may follow a database, separated by commas. Every tenant
   * of this host can name addresses in them.
   */
  FOLLOW_PRIVATE_NETWORKS: z
    .string()
    .default('')
    .transform((text, context) =>
      text
        .split(',')
        .map((network) => network.trim())
        .filter(Boolean)
        .flatMap((network) => {
          const reading = readCidr(network);
          if (reading.ok) return [reading.cidr];
          context.addIssue({ code: 'custom', message: reading.message });
          return [];
        }),
    )
    .meta({ form: 'networks, comma-separated' }),
  /**
   * PEM file of authorities that sign the certificates of such databases, in addition to those that Node and
   * the system know.
   */
  FOLLOW_CA_FILE: Path.optional(),
  /** Temporary files that one session may fill. */
  TEMP_FILE_LIMIT_MB: z.coerce.number().int().min(16).max(1_048_576).default(1024),
  /** Size of PostgreSQL's log folder above which the oldest files are deleted. */
  LOG_FOLDER_MB: z.coerce.number().int().min(128).max(1_048_576).default(1024),
  /** Sessions with PostgreSQL of all branches of one project together. */
  PROJECT_CONNECTIONS: z.coerce.number().int().min(10).max(10_000).default(120),
  /** Sessions with PostgreSQL of all projects of one tenant together, and never half of what there is. */
  TENANT_CONNECTIONS: z.coerce.number().int().min(10).max(10_000).default(180),
  /** Files of all databases of one project; the gateway refuses branches beyond the default. */
  PROJECT_FILES: z.coerce.number().int().min(1_000).max(PROJECT_FILES_MAX).default(PROJECT_FILES_MAX),
  /** Free space of each volume below which a branch that fills it is blocked. */
  MIN_FREE_DISK_MB: z.coerce.number().int().min(16).max(1_048_576).default(1024),
  /** A snapshot of `main` is copied if this multiple of its size is free; 0: never. */
  SNAPSHOT_COPY_ROOM: z.coerce.number().min(0).max(100).default(2),
  /**
   * Hours of the past to which databases can be recovered; 0: none. Left out: 24 where files can share blocks, and 0
   * elsewhere, where each base copy takes the size of all databases.
   */
  RECOVERY_WINDOW_HOURS: z.coerce.number().int().min(0).max(720).optional(),
  /** Hours between two base copies. A recovery replays the WAL since the one before its time. */
  BASE_COPY_HOURS: z.coerce.number().int().min(1).max(168).default(6),
  /** Folder of base copies and archived WAL, on the volume of PGDATA_DIR. Default: PGDATA_DIR with `-past` after it. */
  PAST_DIR: Path.optional(),
  /** Percent of its volume that PAST_DIR may take. Beyond it the oldest base copies go, and the window is shorter. */
  PAST_DISK_PERCENT: z.coerce.number().int().min(1).max(90).default(20),
  /** Age at which a tenant's transaction is ended. */
  TRANSACTION_SECONDS: z.coerce.number().int().min(1).max(604_800).default(3600),
  /** Transaction ids that a branch may take on average; a burst may take those of ten seconds. */
  TRANSACTION_IDS_PER_SECOND: z.coerce.number().int().min(100).max(1_000_000).default(5_000),
  /** `off` turns the watchdogs off, which only a benchmark does. */
  GUARDS: z.enum(['on', 'off']).default('on'),
  /** Directory of the ACME server that `join` gets a certificate from (RFC 8555). */
  ACME_DIRECTORY: z.url({ protocol: /^https?$/ }).default('https://acme-v02.api.letsencrypt.org/directory'),
  /** Port on loopback of the metrics for Prometheus; 0: off. */
  METRICS_PORT: z.coerce.number().int().min(0).max(65_535).default(0),
  /**
   * Time for a program that `upgrade` has installed to link, before the agent goes back to the one before it.
   */
  UPGRADE_TRIAL_SECONDS: z.coerce.number().int().min(1).max(600).default(30),
  /** Interval of the measurements (specification 8). */
  MEASURE_INTERVAL_SECONDS: z.coerce.number().int().min(1).max(3600).default(60),
});

export type AgentSettings = z.output<typeof Settings>;

/** By name, for messages and for the table of `docs/operating.md`. */
export const AGENT_SETTINGS: Readonly<Record<string, z.ZodType>> = Settings.shape;

/**
 * @param env variables by name; an empty one counts as missing
 * @throws Error that names each missing or invalid variable, never its value
 */
export function readSettings(env: Record<string, string | undefined>): AgentSettings {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''));
  const reading = Settings.safeParse(given);
  if (reading.success) return reading.data;
  throw new Error(faultsOf(AGENT_SETTINGS, reading.error));
}

/** Folder of the generated rule files, which the configuration of both servers includes. */
export const rulesFolder = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>) => join(STATE_DIR, 'rules');

export const pastFolder = ({ PAST_DIR, PGDATA_DIR }: Pick<AgentSettings, 'PAST_DIR' | 'PGDATA_DIR'>) =>
  PAST_DIR ?? `${PGDATA_DIR}-past`;

/** Folder of the control files of `EXTENSIONS`, in `extension/`. */
export const extensionsFolder = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>) =>
  join(STATE_DIR, 'extensions');
