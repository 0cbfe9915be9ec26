import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { delimiter, join } from 'node:path';
import { tableName } from '../../agent/firewall/ruleset.ts';
import { ROOT } from '../build/repository.ts';
import { waitForServerProcesses } from './data-folder.ts';
import type { DevFolder, GatewaySecrets } from './dev-folder.ts';
import type { HostFolder } from './host-folder.ts';
import { marks } from './leftovers.ts';
import { type OsUser, withNetAdmin } from './os-user.ts';
import type { Ports } from './ports.ts';
import type { Program } from './processes.ts';
import { type Environment, Refusal, type StackSettings } from './settings.ts';

/** Whether the agent publishes its rules to a packet filter, for which root has to start the stack. */
const hasFirewall = ({ environment }: StackSettings) =>
  environment.FIREWALL === 'nftables' && process.getuid?.() === 0;

/** Removes the agent's table. It outlives the agent, which may be restarted, but not the stack. */
export function removeFirewall(settings: StackSettings, ports: Ports): void {
  if (!hasFirewall(settings)) return;
  const table = tableName({ POSTGRES_PORT: ports.DIRECT_PORT });
  spawnSync('nft', ['delete', 'table', ...table.split(' ')]);
}

/** In the order in which they stop: a part stops before the parts that it uses. */
export const PART_NAMES = ['agent', 'gateway', 'idp', 'pgbouncer', 'postgres'] as const;
export type PartName = (typeof PART_NAMES)[number];
/** Those that each database host has. */
export const HOST_PARTS = ['agent', 'pgbouncer', 'postgres'] as const satisfies readonly PartName[];
export type HostPart = (typeof HOST_PARTS)[number];

/**
 * Node stores what it compiles, so that the next start of Miniflare and of the identity provider takes less
 * processor time.
 */
const COMPILED = { NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/node') };

/** Everything that is determined before a part is started. Each further host has a site with files and ports of its own. */
export interface Site {
  settings: StackSettings;
  /** Of the database host: 1, or a further one. */
  number: number;
  /** Whether it is the standby of the first one. */
  isStandby: boolean;
  folder: DevFolder;
  host: HostFolder;
  user: OsUser;
  ports: Ports;
  secrets: GatewaySecrets;
  /** The database host's programs, at paths that its user can access. */
  binaries: { postgres: string; tools: string; pgbouncer: string; node: string; agent: string };
  /** Folder of the console's static files. */
  consoleAssets: string;
}

/** Node's options for the agent, as in its systemd unit, which gives the reasons. */
export const AGENT_NODE_OPTIONS = ['--max-semi-space-size=4', '--max-old-space-size=512'];

export const LOOPBACK = '127.0.0.1';

/** Path of the mail receiver at the identity provider's port. Its key is used on this machine only. */
export const MAIL_PATH = '/mail';
const LOCAL_MAIL_KEY = 'local-mail';

/** Name of the part of a database host. */
const partName = (name: PartName, { number, isStandby }: Pick<Site, 'number' | 'isStandby'>) =>
  isStandby ? `${name}-standby` : number === 1 ? name : `${name}-${number}`;

/** As in the units of both servers: a host with a standby asks for its role before a server opens a port. */
const GATE = 'test ! -e "$0" || "$1" "$2" gate --wait; shift 2; exec "$@"';

const behindGate = ({ host, binaries }: Site, command: string, args: readonly string[]) => ({
  command: '/bin/sh',
  args: ['-c', GATE, join(host.state, 'member.json'), binaries.node, binaries.agent, command, ...args],
});

export const gatewayUrl = ({ ports }: { ports: Pick<Ports, 'GATEWAY_PORT'> }) =>
  `http://${LOOPBACK}:${ports.GATEWAY_PORT}`;
export const idpUrl = ({ ports }: { ports: Pick<Ports, 'IDP_PORT'> }) =>
  `http://${LOOPBACK}:${ports.IDP_PORT}`;

/** Nobody else uses the local host, so its tenants may have more than those of a deployment. */
const LOCAL_CAPS = {
  TENANT_PROJECT_LIMIT: '100',
  TENANT_QUOTA_LIMIT_GIB: '500',
  STORAGE_OVERCOMMIT: '100',
  SELF_SIGNUP_PROJECT_LIMIT: '100',
  SELF_SIGNUP_QUOTA_LIMIT_GIB: '500',
};

/** Settings of the gateway: the environment overrides the stack's own. */
export const gatewaySettings = (site: Site) => ({
  BASE_URL: gatewayUrl(site),
  IDP_URL: idpUrl(site),
  MAIL_API_URL: `${idpUrl(site)}${MAIL_PATH}`,
  MAIL_API_KEY: LOCAL_MAIL_KEY,
  ALERT_EMAIL: 'team@localhost',
  // Only users of this machine reach it.
  SIGN_UP: 'open',
  // The people of the local provider can sign in by password.
  IDP_PASSWORD_GRANT: 'on',
  ...LOCAL_CAPS,
  ...site.secrets,
  ...site.settings.environment,
});

/** Settings of the agent that the environment can override. */
const AGENT_LIMITS = [
  'POOLER_MAX_CLIENTS',
  'BRANCH_CONNECTIONS',
  'BRANCH_POOL_SIZE',
  'CONNECTION_ATTEMPTS_PER_MINUTE',
  'CONNECTION_ATTEMPTS_SCOPE',
  'EXTENSIONS',
  'PROJECT_EXTENSIONS',
  'FOLLOW_PRIVATE_NETWORKS',
  'FOLLOW_CA_FILE',
  'FIREWALL',
  'TEMP_FILE_LIMIT_MB',
  'LOG_FOLDER_MB',
  'PROJECT_CONNECTIONS',
  'TENANT_CONNECTIONS',
  'PROJECT_FILES',
  'MIN_FREE_DISK_MB',
  'TRANSACTION_SECONDS',
  'TRANSACTION_IDS_PER_SECOND',
  'GUARDS',
  'RECOVERY_WINDOW_HOURS',
  'BASE_COPY_HOURS',
  'PAST_DISK_PERCENT',
  'METRICS_PORT',
  'MEASURE_INTERVAL_SECONDS',
  'UPGRADE_TRIAL_SECONDS',
] as const;

/** Settings of the agent for this stack. The environment can override the gateway's address. */
export const agentSettings = ({ settings, ports, host, number, binaries }: Site) => ({
  GATEWAY_URL: settings.environment.GATEWAY_URL ?? gatewayUrl({ ports }),
  STATE_DIR: host.state,
  POSTGRES_SOCKET_DIR: host.sockets,
  POSTGRES_BIN: binaries.tools,
  POSTGRES_PORT: String(ports.DIRECT_PORT),
  PGDATA_DIR: host.data,
  POOLER_SOCKET_DIR: host.sockets,
  POOLER_PORT: String(ports.POOLED_PORT),
  POOLER_LOG: join(host.logs, 'pgbouncer.log'),
  SQL_PORT: String(ports.SQL_PORT),
  ...Object.fromEntries(
    AGENT_LIMITS.flatMap((name) => {
      const value = settings.environment[name];
      // Further agents would listen on the same port.
      return value && (number === 1 || name !== 'METRICS_PORT') ? [[name, value]] : [];
    }),
  ),
});

type Definition = Omit<Program, 'name' | 'logFile' | 'environment'> & { environment?: Environment };

export function programs(site: Site): Record<PartName, Program> {
  const { settings, folder, host, user, ports, binaries } = site;
  const { CREDENTIAL_KEYS, PLATFORM_SECRET, JWT_KEYS, IDP_CLIENT_SECRET, MAIL_API_KEY, ...unsecret } =
    settings.environment;
  const onHost = { user, workFolder: host.dir };
  const inRepository = { command: process.execPath, workFolder: ROOT, serves: 'message' } as const;

  const definitions: Record<PartName, Definition> = {
    postgres: {
      ...onHost,
      ...behindGate(site, join(binaries.postgres, 'postgres'), [
        ...['-D', host.data, ...postgresFiles(host.config)],
      ]),
      environment: agentSettings(site),
      // Fast shutdown: ends all sessions and needs no recovery at the next start.
      stopSignals: ['SIGINT'],
      serves: (pid) => postmasterIsReady(host.data, pid),
      untilAllEnded: () => waitForServerProcesses(host.data),
    },
    pgbouncer: {
      ...onHost,
      ...behindGate(site, binaries.pgbouncer, [join(host.config, 'pgbouncer.ini')]),
      environment: agentSettings(site),
      // Since 1.23, the first signal waits until clients have disconnected, and the second does not.
      stopSignals: ['SIGTERM', 'SIGTERM'],
      serves: () => accepts(join(host.sockets, `.s.PGSQL.${ports.POOLED_PORT}`)),
    },
    agent: {
      ...agentProgram(site),
      workFolder: host.dir,
      environment: agentSettings(site),
      stopSignals: ['SIGTERM'],
      // The stack checks separately whether the agent is linked.
      serves: () => true,
    },
    gateway: {
      ...inRepository,
      // What loads Miniflare fills the young generation often. Several threads that clear it take a tenth more processor time.
      args: ['--single-threaded-gc', join(ROOT, 'dev/gateway/main.ts')],
      environment: {
        ...COMPILED,
        ...gatewaySettings(site),
        GATEWAY_PORT: String(ports.GATEWAY_PORT),
        GATEWAY_STATE_DIR: folder.gatewayState,
        GATEWAY_SCRATCH_DIR: folder.gatewayScratch,
        GATEWAY_BUNDLE: folder.workerBundle,
        GATEWAY_ASSETS: site.consoleAssets,
      },
      stopSignals: ['SIGTERM'],
    },
    idp: {
      ...inRepository,
      args: [join(ROOT, 'dev/identity-provider/main.ts')],
      environment: {
        ...COMPILED,
        IDP_PORT: String(ports.IDP_PORT),
        IDP_STATE_DIR: folder.identityProvider,
        GATEWAY_URL: gatewaySettings(site).BASE_URL,
        IDP_CLIENT_SECRET: gatewaySettings(site).IDP_CLIENT_SECRET,
        MAIL_DIR: folder.mail,
        MAIL_API_KEY: LOCAL_MAIL_KEY,
      },
      stopSignals: ['SIGTERM'],
    },
  };

  const complete = (name: PartName): Program => ({
    ...definitions[name],
    name: partName(name, site),
    environment: {
      ...unsecret,
      ...definitions[name].environment,
      ...marks(settings.DEV_DIR, definitions[name].stopSignals[0]),
    },
    logFile: join(folder.logs, `${partName(name, site)}.log`),
  });
  return Object.fromEntries(PART_NAMES.map((name) => [name, complete(name)])) as Record<PartName, Program>;
}

/** Only root can give it the capability to change the packet filter. */
function agentProgram({ settings, user, binaries }: Site) {
  const program = { command: binaries.node, args: [...AGENT_NODE_OPTIONS, binaries.agent, 'run'] };
  return hasFirewall(settings) ? withNetAdmin(user, program) : { ...program, user };
}

/** Options with the configuration files that `servers.ts` writes. */
const postgresFiles = (config: string) =>
  Object.entries({
    config_file: 'postgresql.conf',
    hba_file: 'pg_hba.conf',
    ident_file: 'pg_ident.conf',
  }).flatMap(([setting, file]) => ['-c', `${setting}=${join(config, file)}`]);

/** The postmaster writes its state to the eighth line of its lock file, which `pg_ctl` reads too. */
async function postmasterIsReady(dataDir: string, pid: number): Promise<boolean> {
  // A new postmaster removes the file of one that was killed.
  const lines = (await readFile(join(dataDir, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n');
  return Number(lines[0]) === pid && lines[7]?.trim() === 'ready';
}

const accepts = (socketFile: string) =>
  new Promise<boolean>((resolve) => {
    const socket = connect(socketFile, () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });

/** @throws Refusal when it is not found; `dev/setup` searches the same folders */
export function findPgBouncer(environment: Environment): string {
  const folders = [...(environment.PATH ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin'];
  const found = folders.map((folder) => join(folder, 'pgbouncer')).find((path) => existsSync(path));
  if (!found)
    throw new Refusal('PgBouncer was not found: install version 1.18 or later, or run dev/setup as root');
  return found;
}
