import { execFile } from 'node:child_process';
import { appendFileSync, chmodSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { pollUntil } from '../../../agent/process/loops.ts';
import { accessToken, SCOPES, scopeNames } from '../../../dev/identity-provider/access-token.ts';
import { initializeDataFolder } from '../../../dev/stack/data-folder.ts';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import { hostName } from '../../../dev/stack/enrolment.ts';
import { stackProcesses } from '../../../dev/stack/leftovers.ts';
import type { Part } from '../../../dev/stack/processes.ts';
import { agentSettings, type HostPart, type PartName, type Site } from '../../../dev/stack/programs.ts';
import { readSettings } from '../../../dev/stack/settings.ts';
import {
  type Stack as LocalStack,
  type StackState,
  startStack as startLocalStack,
} from '../../../dev/stack/stack.ts';
import { checkResponse } from '../contract.ts';
import { freePort } from '../free-port.ts';
import { IN_DATA_FOLDER, PREPARED } from '../prepared.ts';

export interface StackOptions {
  /** A folder that outlives the stack; left out, a temporary one that is removed with it. */
  devDir?: string;
  /** Settings by name. `GATEWAY_URL` makes the agent dial another address than the gateway's. */
  env?: Record<string, string>;
  /** Whether a part that ends is restarted automatically. Default true. */
  restarts?: boolean;
  /** The bundle of its agent; left out, that of these sources. */
  agent?: () => Promise<string>;
}

export interface TokenOptions {
  email?: string;
  tenant?: string;
  role?: string;
  /** One scope alone; left out: both. */
  scope?: (typeof SCOPES)[number];
  /** Seconds; negative for a token that has expired. */
  expiresIn?: number;
  /** Seconds by which the issuer's clock is ahead of this one; negative for behind. */
  ahead?: number;
}

export interface RequestOptions {
  token?: string;
  method?: string;
  /** Sent as JSON; a body makes the method POST unless one is given. */
  body?: unknown;
  headers?: Record<string, string>;
}

/** A database host of the stack. */
export interface StackHost {
  /** At the gateway. */
  name: string;
  isStandby: boolean;
  kill(part: HostPart): Promise<void>;
  start(part: HostPart): Promise<void>;
  /** The process id of a part; null while it does not run. */
  pid(part: HostPart): number | null;
  /** Runs a command of its control tool, as the agent's user. */
  agentTool(...words: string[]): Promise<{ stdout: string; stderr: string }>;
  dataDir: string;
  stateDir: string;
  sockets: string;
  ports: { direct: number; pooled: number; sql: number };
}

export interface Stack {
  /** The content of `stack.json`, always current. */
  readonly state: StackState;
  url: string;
  devDir: string;
  /** Sends SIGKILL; for the gateway, to workerd and its runner. */
  kill(part: PartName): Promise<void>;
  /** Starts a part that was killed. */
  start(part: PartName): Promise<void>;
  /** Replaces PostgreSQL's data by an empty cluster while the server is down. @returns restores the data */
  swapCluster(): Promise<() => void>;
  /** Resolves once the gateway responds and a host is linked. */
  untilReady(milliseconds?: number): Promise<void>;
  token(options?: TokenOptions): Promise<string>;
  /** @throws Error when the response differs from the API's description */
  fetch(path: string, options?: RequestOptions): Promise<Response>;
  /** Runs a command of the agent's control tool on the database host, as the agent's user. */
  agentTool(...words: string[]): Promise<{ stdout: string; stderr: string }>;
  /** The first host, with `HOSTS` the further ones, and with `STANDBY=1` the standby as the last one. */
  hosts: readonly StackHost[];
  /** The standby, with `STANDBY=1`. */
  readonly standby: StackHost;
  /** Ends everything. @throws Error when a process is left */
  stop(): Promise<void>;
}

/** For tests that check whether D1 changed: a measurement can change it. */
export const UNMEASURED = { MEASURE_INTERVAL_SECONDS: '3600' };

/** For tests that send more requests than the limits allow. */
export const UNLIMITED = Object.fromEntries(
  ['READS', 'WRITES', 'PUBLIC'].map((name) => [`LIMIT_${name}_PER_MINUTE`, '100000']),
);

/** Tests create more projects than a tenant may have. */
const UNCAPPED = Object.fromEntries(
  ['TENANT', 'SELF_SIGNUP'].flatMap((kind) => [
    [`${kind}_PROJECT_LIMIT`, '10000'],
    [`${kind}_QUOTA_LIMIT_GIB`, '10000'],
  ]),
);

const GUARDS_END = { within: 20_000, every: 50 };

const PORT_NAMES = ['GATEWAY_PORT', 'IDP_PORT', 'DIRECT_PORT', 'POOLED_PORT', 'SQL_PORT'];
const STACKS = new Set<LocalStack>();

// An interrupted test run leaves no process.
process.once('exit', () => {
  for (const { state } of STACKS)
    for (const { pids } of [state, ...state.other_hosts])
      for (const pid of Object.values(pids)) if (pid) end(-pid);
});

function end(pid: number) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

/** The stack of `npm start`, in this process, on free ports and in a folder of its own. */
export async function startStack(options: StackOptions = {}): Promise<Stack> {
  const devDir = options.devDir ?? temporaryFolder();
  const isNew = !existsSync(devFolder(devDir).choicesFile);
  const settings = readSettings({
    PATH: process.env.PATH,
    DEV_DIR: devDir,
    ...UNCAPPED,
    // Base copies and an archive, for tests that ask for them.
    RECOVERY_WINDOW_HOURS: '0',
    // The passwords of the tests protect nothing.
    PASSWORD_COST: '10',
    // No test asks a resolver or a list of the network.
    DNS_OVER_HTTPS_URL: 'http://127.0.0.1:9/dns-query',
    CLOUDFLARE_NETWORKS_URLS: 'http://127.0.0.1:9/cloudflare',
    GITHUB_META_URL: 'http://127.0.0.1:9/github',
    ...(isNew ? await freePorts() : {}),
    ...options.env,
  });
  const report = () => {};
  const stack = await startLocalStack(settings, {
    report,
    restarts: options.restarts ?? true,
    prepared: { ...PREPARED, ...(options.agent && { agent: options.agent }) },
  });
  STACKS.add(stack);
  const { site, parts, state } = stack;
  const hosts = [{ site, parts }, ...stack.others].map(hostOf);

  return {
    state,
    url: state.base_url,
    devDir,
    kill: (part) => parts[part].kill(),
    start: (part) => parts[part].start(),
    async swapCluster() {
      const { data } = site.host;
      const away = `${data}.away`;
      renameSync(data, away);
      mkdirSync(data);
      await initializeDataFolder(data, { binaries: site.binaries.postgres, user: site.user });
      appendFileSync(join(data, 'postgresql.conf'), IN_DATA_FOLDER);
      return () => {
        rmSync(data, { recursive: true });
        renameSync(away, data);
      };
    },
    async untilReady(milliseconds = 120_000) {
      for (const deadline = Date.now() + milliseconds; !(await stack.isReady()); await sleep(50)) {
        if (Date.now() > deadline) throw new Error('the stack is not ready');
      }
    },
    token({
      email = 'ada@example.com',
      tenant = 'acme',
      role = 'owner',
      scope,
      expiresIn = 3600,
      ahead = 0,
    }: TokenOptions = {}) {
      const scopes = scopeNames(scope ? [scope] : SCOPES);
      const issuedAt = new Date(Date.now() + ahead * 1000);
      const expiresAt = new Date(issuedAt.getTime() + expiresIn * 1000);
      const claims = { email, tenant, role, scopes, issuedAt, expiresAt };
      return accessToken(site.folder.identityProvider, claims);
    },
    async fetch(path, options: RequestOptions = {}) {
      const { token, body, headers, method = body === undefined ? 'GET' : 'POST' } = options;
      const response = await fetch(`${state.base_url}${path}`, {
        method,
        headers: {
          ...(token && { authorization: `Bearer ${token}` }),
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const { status } = response;
      const bodyText = await response.clone().text();
      checkResponse({ method, path, status, headers: response.headers, bodyText });
      return response;
    },
    agentTool: toolOf(site),
    hosts,
    get standby() {
      const host = hosts.find(({ isStandby }) => isStandby);
      if (!host) throw new Error('the stack has no standby');
      return host;
    },
    async stop() {
      await stack.stop();
      STACKS.delete(stack);
      // A guard of a lease ends after its servers, with the lease.
      await pollUntil(async () => stackProcesses(devDir).length === 0, GUARDS_END);
      const left = stackProcesses(devDir);
      for (const { pid } of left) end(pid);
      if (options.devDir === undefined) rmSync(devDir, { recursive: true });
      if (left.length > 0) throw new Error(`${left.length} processes of the stack were left`);
    },
  };
}

const hostOf = ({ site, parts }: { site: Site; parts: Record<HostPart, Part> }): StackHost => ({
  name: hostName(site),
  isStandby: site.isStandby,
  kill: (part) => parts[part].kill(),
  start: (part) => parts[part].start(),
  pid: (part) => parts[part].pid,
  agentTool: toolOf(site),
  dataDir: site.host.data,
  stateDir: site.host.state,
  sockets: site.host.sockets,
  ports: { direct: site.ports.DIRECT_PORT, pooled: site.ports.POOLED_PORT, sql: site.ports.SQL_PORT },
});

const toolOf =
  (site: Site) =>
  (...words: string[]) => {
    const { uid, gid } = site.user;
    const options = { env: agentSettings(site), uid, gid, cwd: site.host.dir };
    return promisify(execFile)(site.binaries.node, [site.binaries.agent, ...words], options);
  };

/** Other users can read it, unlike a folder of mkdtemp: started by root, the servers run as another user. */
export function temporaryFolder(): string {
  const dir = mkdtempSync(join(tmpdir(), 'branchgate-stack-'));
  chmodSync(dir, 0o755);
  return dir;
}

/** A free port for each part, by the name of its setting. */
export async function freePorts(): Promise<Record<string, string>> {
  const ports = await Promise.all(PORT_NAMES.map(async (name) => [name, String(await freePort())]));
  return Object.fromEntries(ports);
}
