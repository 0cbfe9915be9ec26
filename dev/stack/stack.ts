import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { closeHost, openHost } from '../../agent/host/host.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { readSettings as readAgentSettings } from '../../agent/process/settings.ts';
import { checkDataFolder, initializeDataFolder } from './data-folder.ts';
import { writeStored } from './dev-folder.ts';
import { enrolHost, isEnrolled, isLinked, publishAuthority } from './enrolment.ts';
import { endLeftovers, lockDevFolder } from './leftovers.ts';
import { type Part, supervise } from './processes.ts';
import {
  agentSettings,
  gatewayUrl,
  idpUrl,
  LOOPBACK,
  PART_NAMES,
  type PartName,
  programs,
  removeFirewall,
  type Site,
} from './programs.ts';
import { certificatesIn, configureServers } from './servers.ts';

import { Refusal, type StackSettings } from './settings.ts';
import { type Prepared, prepareSite } from './site.ts';

/** `stack.json`: the running stack's public state, for other programs. */
export interface StackState {
  base_url: string;
  idp_url: string;
  db_host: string;
  direct_port: number;
  pooled_port: number;
  /** Folder with the mails that the stack sent. */
  mail_dir: string;
  clone_method: 'reflink' | 'copy';
  /**
   * Certificate of the authority that signed the database servers' certificate, in PEM format; and a file
   * with it.
   */
  ca_certificate: string;
  ca_file: string;
  /** Folder of the database host's files, PostgreSQL's data folder, and their owner. */
  host_dir: string;
  data_dir: string;
  host_user: string;
  /** Process ids, each of a process group's leader; null while the part is being restarted. */
  pids: Record<PartName, number | null>;
}

export interface Stack {
  /** Updated while the stack runs. */
  readonly state: StackState;
  site: Site;
  parts: Record<PartName, Part>;
  /** Whether the gateway is ready and the database host is linked to it. */
  isReady(): Promise<boolean>;
  /** Stops every part; the data stays. */
  stop(): Promise<void>;
}

export interface StartOptions {
  /** Called with a line for each part that is ready, and for each that had to be restarted. */
  report: (line: string) => void;
  /** Whether parts that end unexpectedly are restarted. */
  restarts: boolean;
  /** Cancels the start, as soon as the parts that are starting are ready. */
  signal?: AbortSignal;
  /** Left out, this start bundles its programs and runs initdb. */
  prepared?: Prepared;
}

const LINKED = { within: 60_000, every: 50 };

/**
 * Starts the whole service on this machine.
 * @throws Refusal when it cannot start; every part that was started is stopped then
 */
export async function startStack(settings: StackSettings, options: StartOptions): Promise<Stack> {
  const unlock = await lockDevFolder(settings.DEV_DIR);
  let stop = unlock;
  try {
    const leftovers = await endLeftovers(settings.DEV_DIR);
    if (leftovers > 0) options.report(`ended ${leftovers} processes that an earlier start had left running`);
    const site = await prepareSite(settings, options.prepared);
    let state: StackState | null = null;
    const writeState = () => {
      if (!state) return;
      state.pids = pids();
      writeStored(site.folder.stackFile, state, 0o644);
    };
    const supervised = Object.values(programs(site)).map((program) =>
      supervise(program, { ...options, onChange: () => writeState() }),
    );
    const parts = Object.fromEntries(supervised.map((part) => [part.name, part])) as Stack['parts'];
    const pids = () =>
      Object.fromEntries(PART_NAMES.map((name) => [name, parts[name].pid])) as StackState['pids'];
    stop = async () => {
      state = null;
      for (const name of PART_NAMES) await parts[name].stop();
      removeFirewall(settings, site.ports);
      rmSync(site.host.sockets, { recursive: true, force: true });
      rmSync(site.folder.stackFile, { force: true });
      await unlock();
    };

    await boot(site, parts, options);
    state = await describe(site, pids());
    writeState();
    return { state, site, parts, isReady: () => isLinked(site), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function boot(
  site: Site,
  parts: Stack['parts'],
  { report, signal, prepared }: StartOptions,
): Promise<void> {
  const up = async (name: PartName, where: string) => {
    signal?.throwIfAborted();
    await parts[name].start();
    report(`${name.padEnd(10)}${where}`);
  };
  const { ports, host, user, binaries } = site;

  async function servers() {
    if (!checkDataFolder(host.data, user)) {
      const template = await prepared?.cluster(binaries.postgres, user);
      await initializeDataFolder(host.data, { binaries: binaries.postgres, user, template });
    }
    await configureServers(site);
    await up('postgres', `${LOOPBACK}:${ports.DIRECT_PORT}, as user ${user.name}, data in ${host.data}`);
    await up('pgbouncer', `${LOOPBACK}:${ports.POOLED_PORT}`);
  }
  // Waits for all of them, so that none becomes ready after the others have been stopped.
  const attempts = await Promise.allSettled([
    servers(),
    up('gateway', gatewayUrl(site)),
    up('idp', idpUrl(site)),
  ]);
  for (const attempt of attempts) if (attempt.status === 'rejected') throw attempt.reason;

  signal?.throwIfAborted();
  if (!isEnrolled(site)) await enrolHost(site);
  await parts.agent.start();
  if (!(await pollUntil(() => isLinked(site), { ...LINKED, signal }))) {
    signal?.throwIfAborted();
    throw new Refusal(
      `the agent did not link to the gateway within ${LINKED.within / 1000} s: see ${site.folder.logs}`,
    );
  }
  await publishAuthority(site, authority(site));
  // The servers' folder belongs to their user, and every user of this machine may connect.
  writeFileSync(site.folder.authorityFile, authority(site));
  report(`${'agent'.padEnd(10)}linked, as user ${user.name}`);
}

const authority = ({ host }: Site) => readFileSync(certificatesIn(host.tls).caFile, 'utf8');

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
    ca_certificate: authority(site),
    ca_file: folder.authorityFile,
    host_dir: host.dir,
    data_dir: host.data,
    host_user: user.name,
    pids,
  };
}
