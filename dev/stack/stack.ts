import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { closeHost, openHost } from '../../agent/host.ts';
import { readSettings as readAgentSettings } from '../../agent/settings.ts';
import { type Part, supervise } from '../processes/supervise.ts';
import { configureServers } from '../servers/configure.ts';
import { checkDataFolder, initializeDataFolder } from '../servers/data-folder.ts';
import { enrolHost, isEnrolled, isLinked } from './enrolment.ts';
import { endLeftovers } from './leftovers.ts';
import {
  agentSettings,
  gatewayUrl,
  idpUrl,
  LOOPBACK,
  PART_NAMES,
  type PartName,
  programs,
  type Site,
} from './programs.ts';
import { Refusal } from './refusal.ts';
import type { StackSettings } from './settings.ts';
import { lockDevFolder } from './single-start.ts';
import { prepareSite } from './site.ts';
import { writeStored } from './stored-file.ts';

/** `stack.json`: what other programs may know of the running stack. */
export interface StackState {
  base_url: string;
  idp_url: string;
  db_host: string;
  direct_port: number;
  pooled_port: number;
  /** Folder of the mails that the stack sent. */
  mail_dir: string;
  clone_method: 'reflink' | 'copy';
  /** Folder of the database host's files, PostgreSQL's data folder, and the user that owns them. */
  host_dir: string;
  data_dir: string;
  host_user: string;
  /** Process ids; each leads a process group. Null while the part is being started again. */
  pids: Record<PartName, number | null>;
}

export interface Stack {
  /** Kept up to date while the stack runs. */
  readonly state: StackState;
  site: Site;
  parts: Record<PartName, Part>;
  /** Whether the gateway serves and the database host is linked to it. */
  isReady(): Promise<boolean>;
  /** Ends every part; the data stays. */
  stop(): Promise<void>;
}

export interface StartOptions {
  /** Told one line for each part that is up, and for each that had to be started again. */
  report: (line: string) => void;
  /** Whether parts that end by themselves are started again. */
  restarts: boolean;
  /** Gives the start up, as soon as what is being started at the moment is up. */
  signal?: AbortSignal;
}

const READY_WITHIN_MS = 30_000;
const POLL_MS = 50;

/**
 * Starts the whole service on this machine.
 * @throws Refusal when something stands in the way; nothing is left running then
 */
export async function startStack(settings: StackSettings, options: StartOptions): Promise<Stack> {
  const letGo = await lockDevFolder(settings.DEV_DIR);
  let stop = letGo;
  try {
    const leftovers = await endLeftovers(settings.DEV_DIR);
    if (leftovers > 0)
      options.report(`ended what an earlier start had left running (${leftovers} processes)`);
    const site = await prepareSite(settings);
    let state: StackState | null = null;
    const publish = () => {
      if (!state) return;
      state.pids = pids();
      writeStored(site.folder.stackFile, state, 0o644);
    };
    const supervised = Object.values(programs(site)).map((program) =>
      supervise(program, { ...options, onChange: () => publish() }),
    );
    const parts = Object.fromEntries(supervised.map((part) => [part.name, part])) as Stack['parts'];
    const pids = () =>
      Object.fromEntries(PART_NAMES.map((name) => [name, parts[name].pid])) as StackState['pids'];
    stop = async () => {
      state = null;
      for (const name of PART_NAMES) await parts[name].stop();
      rmSync(site.host.sockets, { recursive: true, force: true });
      rmSync(site.folder.stackFile, { force: true });
      await letGo();
    };

    await boot(site, parts, options);
    state = await describe(site, pids());
    publish();
    return { state, site, parts, isReady: () => isLinked(site), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function boot(site: Site, parts: Stack['parts'], { report, signal }: StartOptions): Promise<void> {
  const up = async (name: PartName, where: string) => {
    signal?.throwIfAborted();
    await parts[name].start();
    report(`${name.padEnd(10)}${where}`);
  };
  const { ports, host, user, binaries } = site;

  async function servers() {
    if (!checkDataFolder(host.data, user)) await initializeDataFolder(host.data, binaries.postgres, user);
    await configureServers(site);
    await up('postgres', `${LOOPBACK}:${ports.DIRECT_PORT}, as user ${user.name}, data in ${host.data}`);
    await up('pgbouncer', `${LOOPBACK}:${ports.POOLED_PORT}`);
  }
  // All are waited for, so that none comes up after the others have been stopped.
  const attempts = await Promise.allSettled([
    servers(),
    up('gateway', gatewayUrl(site)),
    up('idp', idpUrl(site)),
  ]);
  for (const attempt of attempts) if (attempt.status === 'rejected') throw attempt.reason;

  signal?.throwIfAborted();
  if (!isEnrolled(site)) await enrolHost(site);
  await parts.agent.start();
  for (const deadline = Date.now() + READY_WITHIN_MS; !(await isLinked(site)); await sleep(POLL_MS)) {
    signal?.throwIfAborted();
    if (Date.now() > deadline) {
      throw new Refusal(
        `the agent was not linked to the gateway within ${READY_WITHIN_MS / 1000} s (see ${site.folder.logs})`,
      );
    }
  }
  report(`${'agent'.padEnd(10)}linked, as user ${user.name}`);
}

async function describe(site: Site, pids: StackState['pids']): Promise<StackState> {
  const { ports, folder, host, user } = site;
  const opened = await openHost(readAgentSettings(agentSettings(site)));
  await closeHost(opened);
  return {
    base_url: gatewayUrl(site),
    idp_url: idpUrl(site),
    db_host: LOOPBACK,
    direct_port: ports.DIRECT_PORT,
    pooled_port: ports.POOLED_PORT,
    mail_dir: folder.mail,
    clone_method: opened.cloneMethod,
    host_dir: host.dir,
    data_dir: host.data,
    host_user: user.name,
    pids,
  };
}
