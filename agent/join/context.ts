import { parseEnv } from 'node:util';
import { type AgentSettings, readSettings } from '../process/settings.ts';
import type { ServerLayout } from '../servers/configuration.ts';
import { layoutOf } from './configuration-files.ts';
import { findServers, type Servers } from './find-servers.ts';
import { type Machine, StepFailure } from './machine.ts';
import { OperatorFiles } from './operator-files.ts';

export const SETTINGS_FILE = '/etc/branchgate/agent.env';
/** Copies that PostgreSQL's user can read, with fixed names, so that a renewal changes no configuration. */
export const TLS = { certFile: '/etc/branchgate/tls/server.crt', keyFile: '/etc/branchgate/tls/server.key' };

/** Default of the standby's port. */
const STANDBY_PORT = 6433;

export interface JoinOptions {
  gateway?: string;
  /** The host's name or id at the gateway, which is only shown. */
  host?: string;
  token?: string;
  tlsCert?: string;
  tlsKey?: string;
  cluster?: string;
  logDirectory?: string;
  listen: string;
  /** Start although `doctor` found problems. */
  despiteProblems?: boolean;
}

/** What every step knows. */
export interface Context {
  machine: Machine;
  files: OperatorFiles;
  options: JoinOptions;
  servers: Servers;
  /** The agent's settings, with those that `join` adds. */
  settings: AgentSettings;
  /** The same as environment variables, for commands of the control tool. */
  environment: Record<string, string>;
  /** Lines that the settings file needs. */
  additions: string[];
  layout: ServerLayout;
  /** Node and the program, which runs its own commands as the agent's user. */
  program: readonly [string, string];
  /** Whether the kernel's packet filter can be used. */
  hasNft: boolean;
}

/** @throws StepFailure when a server is missing or too old, or the settings are invalid */
export async function lookAround(
  machine: Machine,
  options: JoinOptions,
  program: readonly [string, string],
): Promise<Context> {
  if (machine.at('/') === '/' && process.getuid?.() !== 0)
    throw new StepFailure(
      'usage',
      'join and leave change the configuration of this machine: run them as root',
    );
  const [servers, nft] = await Promise.all([
    findServers(machine, options.cluster),
    machine.query('nft', ['--version']),
  ]);
  const hasNft = nft.code === 0;
  const present = parseEnv(machine.read(SETTINGS_FILE) ?? '');
  const wanted = wantedSettings(options, servers, hasNft);
  const missing = Object.entries(wanted).filter(([name, { value, isFact }]) =>
    isFact ? present[name] !== value : present[name] === undefined,
  );
  const additions = missing.map(([name, { value }]) => `${name}=${value}`);
  const environment = {
    ...present,
    ...Object.fromEntries(missing.map(([name, { value }]) => [name, value])),
  };
  const settings = read(environment as Record<string, string>);
  return {
    machine,
    files: new OperatorFiles(machine),
    options,
    servers,
    settings,
    environment: environment as Record<string, string>,
    additions,
    layout: layoutOf(settings, {
      listenAddresses: options.listen,
      tls: TLS,
      agentUser: servers.user,
      poolerUser: servers.user,
    }),
    program,
    hasNft,
  };
}

interface Wanted {
  value: string;
  /** It replaces the operator's value, which would be wrong. */
  isFact: boolean;
}

function wantedSettings(
  { gateway }: JoinOptions,
  { postgres, hasPeers }: Servers,
  hasNft: boolean,
): Record<string, Wanted> {
  const fact = (value: string): Wanted => ({ value, isFact: true });
  const preset = (value: string): Wanted => ({ value, isFact: false });
  return {
    ...(gateway !== undefined && { GATEWAY_URL: fact(gateway) }),
    // Another one than by default.
    ...(postgres.version > 18 && { POSTGRES_BIN: fact(`/usr/lib/postgresql/${postgres.version}/bin`) }),
    PGDATA_DIR: fact(postgres.dataDir),
    POSTGRES_PORT: fact(String(postgres.port)),
    POSTGRES_SOCKET_DIR: fact(postgres.socketDir),
    ...(hasNft && { FIREWALL: preset('nftables') }),
    ...(hasNft && hasPeers && { POOLER_STANDBY_PORT: preset(String(STANDBY_PORT)) }),
  };
}

function read(environment: Record<string, string>): AgentSettings {
  try {
    return readSettings(environment);
  } catch (error) {
    throw new StepFailure('usage', `${(error as Error).message}: correct ${SETTINGS_FILE}`);
  }
}
