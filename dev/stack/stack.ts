import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { closeHost, openHost } from '../../agent/host/host.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { readSettings as readAgentSettings } from '../../agent/process/settings.ts';
import { readMember } from '../../agent/standby/stored-member.ts';
import { checkDataFolder, initializeDataFolder } from './data-folder.ts';
import { writeStored } from './dev-folder.ts';
import { copyPrimary, enrolHost, hostName, isCopy, isLinked, publishAuthority } from './enrolment.ts';
import { endLeftovers, lockDevFolder } from './leftovers.ts';
import { type Part, supervise } from './processes.ts';
import {
  agentSettings,
  gatewayUrl,
  HOST_PARTS,
  type HostPart,
  idpUrl,
  LOOPBACK,
  PART_NAMES,
  type PartName,
  programs,
  removeFirewall,
  type Site,
} from './programs.ts';
import { certificatesIn, configureServers, copyCertificate } from './servers.ts';
import { Refusal, type StackSettings } from './settings.ts';
import { type Prepared, prepareSites } from './site.ts';

/** `stack.json`: the running stack's public state, for other programs. */
export interface StackState {
  base_url: string;
  idp_url: string;
  db_host: string;
  direct_port: number;
  pooled_port: number;
  /** Port of SQL over WebSocket. */
  sql_port: number;
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
  /** Further database hosts. */
  other_hosts: {
    name: string;
    direct_port: number;
    pooled_port: number;
    sql_port: number;
    host_dir: string;
    pids: Record<HostPart, number | null>;
  }[];
}

interface FurtherHost {
  site: Site;
  parts: Record<HostPart, Part>;
}

export interface Stack {
  /** Updated while the stack runs. */
  readonly state: StackState;
  site: Site;
  parts: Record<PartName, Part>;
  /** Further database hosts, in the order of their numbers. */
  others: FurtherHost[];
  /** Whether the gateway is ready and each database host is linked to it. */
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

/** Of the longest name of a part, and a space. */
const NAMES_WIDTH = 20;
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
    const [site, ...furtherSites] = await prepareSites(settings, options.report, options.prepared);
    let state: StackState | null = null;
    const writeState = () => {
      if (!state) return;
      state.pids = pids();
      state.other_hosts = others.map(describeOther);
      writeStored(site.folder.stackFile, state, 0o644);
    };
    const supervised = <Name extends PartName>(of: Site, names: readonly Name[]) => {
      const programsOfSite = programs(of);
      const watch = { ...options, onChange: () => writeState() };
      return Object.fromEntries(
        names.map((name) => [name, supervise(programsOfSite[name], watch)]),
      ) as Record<Name, Part>;
    };
    const parts = supervised(site, PART_NAMES);
    const others = furtherSites.map((of) => ({ site: of, parts: supervised(of, HOST_PARTS) }));
    const pids = () =>
      Object.fromEntries(PART_NAMES.map((name) => [name, parts[name].pid])) as StackState['pids'];
    stop = async () => {
      state = null;
      for (const name of PART_NAMES)
        await Promise.all([parts, ...others.map(partsOf)].map((ofHost) => ofHost[name]?.stop()));
      for (const { ports } of [site, ...furtherSites]) removeFirewall(settings, ports);
      for (const { host } of [site, ...furtherSites]) rmSync(host.sockets, { recursive: true, force: true });
      rmSync(site.folder.stackFile, { force: true });
      await unlock();
    };

    await boot(site, parts, others, options);
    state = { ...(await describe(site, pids())), other_hosts: others.map(describeOther) };
    writeState();
    const isReady = async () => (await Promise.all([site, ...furtherSites].map(isLinked))).every(Boolean);
    return { state, site, parts, others, isReady, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

const partsOf = ({ parts }: FurtherHost): Partial<Record<PartName, Part>> => parts;

const describeOther = ({ site, parts }: FurtherHost): StackState['other_hosts'][number] => ({
  name: hostName(site),
  direct_port: site.ports.DIRECT_PORT,
  pooled_port: site.ports.POOLED_PORT,
  sql_port: site.ports.SQL_PORT,
  host_dir: site.host.dir,
  pids: Object.fromEntries(HOST_PARTS.map((name) => [name, parts[name].pid])) as Record<
    HostPart,
    number | null
  >,
});

async function boot(
  site: Site,
  parts: Stack['parts'],
  others: FurtherHost[],
  { report, signal, prepared }: StartOptions,
): Promise<void> {
  const up = async (part: Part, where: string) => {
    signal?.throwIfAborted();
    await part.start();
    report(`${part.name.padEnd(NAMES_WIDTH)}${where}`);
  };

  async function servers(of: Site, { agent, postgres, pgbouncer }: Record<HostPart, Part>) {
    const { ports, host, user, binaries } = of;
    if (!isCopy(of) && !checkDataFolder(host.data, user)) {
      const template = await prepared?.cluster(binaries.postgres, user);
      await initializeDataFolder(host.data, { binaries: binaries.postgres, user, template });
    }
    const made = await prepared?.certificate(user);
    if (made && !existsSync(certificatesIn(host.tls).certFile)) copyCertificate(made, host.tls, user);
    await configureServers(of);
    // Servers that need a lease wait for its guard.
    if (readMember({ STATE_DIR: host.state })?.lease_seconds) void agent.start().catch(() => {});
    await up(postgres, `${LOOPBACK}:${ports.DIRECT_PORT}, as user ${user.name}, data in ${host.data}`);
    await up(pgbouncer, `${LOOPBACK}:${ports.POOLED_PORT}`);
  }
  const all = [{ site, parts }, ...others];
  const hosts = all.filter((host) => !isCopy(host.site));
  // Waits for all of them, so that none becomes ready after the others have been stopped.
  const attempts = await Promise.allSettled([
    ...hosts.map((host) => servers(host.site, host.parts)),
    up(parts.gateway, gatewayUrl(site)),
    up(parts.idp, idpUrl(site)),
  ]);
  for (const attempt of attempts) if (attempt.status === 'rejected') throw attempt.reason;

  // A standby copies a primary that is there.
  for (const host of [...hosts, ...all.filter((host) => !hosts.includes(host))]) {
    signal?.throwIfAborted();
    await enrolHost(host.site);
    if (!hosts.includes(host)) {
      await copyPrimary(host.site);
      await servers(host.site, host.parts);
    }
    await host.parts.agent.start();
    if (!(await pollUntil(() => isLinked(host.site), { ...LINKED, signal }))) {
      signal?.throwIfAborted();
      throw new Refusal(
        `the agent did not link to the gateway within ${LINKED.within / 1000} s: see ${site.folder.logs}`,
      );
    }
    await publishAuthority(host.site, authority(host.site));
    report(`${host.parts.agent.name.padEnd(NAMES_WIDTH)}linked, as user ${site.user.name}`);
  }
  // The servers' folder belongs to their user, and every user of this machine may connect.
  writeFileSync(site.folder.authorityFile, authority(site));
}

const authority = ({ host }: Site) => readFileSync(certificatesIn(host.tls).caFile, 'utf8');

async function describe(site: Site, pids: StackState['pids']): Promise<Omit<StackState, 'other_hosts'>> {
  const { ports, folder, host, user } = site;
  const opened = await openHost(readAgentSettings(agentSettings(site)));
  await closeHost(opened);
  return {
    base_url: gatewayUrl(site),
    idp_url: idpUrl(site),
    db_host: LOOPBACK,
    direct_port: ports.DIRECT_PORT,
    pooled_port: ports.POOLED_PORT,
    sql_port: ports.SQL_PORT,
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
