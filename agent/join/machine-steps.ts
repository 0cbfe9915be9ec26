import { statSync } from 'node:fs';
import { join } from 'node:path';
import { probeCloneMethod } from '../cloning/clone-method.ts';
import { ROTATION_STATE } from '../servers/unit-drop-ins.ts';
import { hasReverseMap } from '../volumes/xfs.ts';
import type { Context } from './context.ts';
import { lastLine } from './machine.ts';
import { disable, enable, reloadUnits } from './services.ts';
import { install, postgresFiles, type Step, UNITS } from './step.ts';

const KERNEL_FILE = '/etc/sysctl.d/60-branchgate.conf';
const OVERCOMMIT = { name: 'vm.overcommit_memory', value: '2', path: '/proc/sys/vm/overcommit_memory' };
const FILTER = { rules: '/etc/branchgate/nftables.conf', machine: '/etc/nftables.conf' };

/**
 * Says what the volume of the data costs. It changes nothing, because only an empty volume can be made again.
 */
async function checkVolume({ machine, servers: { postgres } }: Context): Promise<void> {
  const dataDir = machine.at(postgres.dataDir);
  const remedy = 'mkfs.xfs -m reflink=1,rmapbt=0 <device>';
  const { stdout } = await machine.query('findmnt', [
    '--noheadings',
    '--output',
    'FSTYPE,SOURCE',
    '--target',
    dataDir,
  ]);
  const volume = stdout.trim().split(/\s+/).join(' on ') || 'the volume';
  if ((await probeCloneMethod(dataDir)) === 'copy')
    machine.note(
      `${volume} has no reflinks: every branch takes the time and the space of a full copy of its database. To share blocks, put the data on a volume that is made with: ${remedy}`,
    );
  else if (await hasReverseMap(dataDir))
    machine.note(
      `${volume} keeps a reverse map (rmapbt=1), with which a branch takes three times as long. Make the volume with: ${remedy}`,
    );
  else machine.note(`${volume} shares the blocks of branches`);
}

async function setKernel({ machine, files }: Context): Promise<void> {
  const { name, value, path } = OVERCOMMIT;
  const now = machine.read(path)?.trim();
  if (now !== undefined && now !== value && !machine.isDryRun) await files.rememberKernel(name, now);
  await files.write(
    KERNEL_FILE,
    `# A session that asks for too much memory gets an error.\n${name} = ${value}\n`,
  );
  if (now === undefined || now === value) return;
  await machine.change(`set ${name} to ${value}`, async () => {
    const ran = await machine.query('sysctl', ['--write', `${name}=${value}`]);
    if (ran.code !== 0)
      machine.note(
        `${name} could not be set now (${lastLine(ran)}): it applies from the next start of the machine`,
      );
    return ran.code === 0;
  });
}

async function takeBackKernel({ machine, files }: Context): Promise<void> {
  for (const [name, value] of Object.entries(files.record().kernel)) {
    const now = machine.read(`/proc/sys/${name.replaceAll('.', '/')}`)?.trim();
    if (now !== undefined && now !== value)
      await machine.run(`set ${name} to ${value} again`, 'sysctl', ['--write', `${name}=${value}`]);
  }
}

const ROTATION = {
  rules: '/etc/branchgate/logrotate.conf',
  unit: `${UNITS}/branchgate-logs.service`,
  timer: 'branchgate-logs.timer',
};

async function placeLogs(context: Context): Promise<void> {
  await rotatePoolerLogs(context);
  await placePostgresLogs(context);
}

/** The agent bounds PostgreSQL's logs itself. */
async function rotatePoolerLogs(context: Context): Promise<void> {
  const { machine } = context;
  if ((await machine.query('logrotate', ['--version'])).code === 127) {
    machine.note("PgBouncer's log grows without a limit: apt install logrotate, and run join again");
    return;
  }
  await install(context, 'logrotate.conf', ROTATION.rules);
  await install(context, 'branchgate-logs.service', ROTATION.unit);
  await install(context, 'branchgate-logs.timer', `${UNITS}/${ROTATION.timer}`);
  await reloadUnits(machine, [ROTATION.timer]);
  await enable(machine, ROTATION.timer);
}

async function endRotation({ machine, files }: Context): Promise<void> {
  if (files.record().files[`${UNITS}/${ROTATION.timer}`]) await disable(machine, ROTATION.timer);
  if (machine.exists(ROTATION_STATE))
    await machine.change(`removed ${ROTATION_STATE}`, () => machine.remove(ROTATION_STATE));
}

async function placePostgresLogs(context: Context): Promise<void> {
  const { machine, files, servers, options } = context;
  const { logDirectory } = options;
  const paths = postgresFiles(context);
  if (logDirectory === undefined) {
    const device = (path: string) => statSync(machine.at(path), { throwIfNoEntry: false })?.dev;
    const logs = machine.exists(paths.logs) ? null : join(servers.postgres.dataDir, 'log');
    if (logs && [undefined, device(servers.postgres.dataDir)].includes(device(logs)))
      machine.note(
        "PostgreSQL's logs are on the volume of its data, so a full volume stops both: give --log-directory on a volume of its own, larger than LOG_FOLDER_MB",
      );
    return;
  }
  await machine.makeFolder(logDirectory, { mode: 0o700, owner: servers.user });
  await files.write(paths.logs, `log_directory = '${logDirectory.replaceAll("'", "''")}'\n`);
}

async function filterPackets(context: Context): Promise<void> {
  const { machine, files, settings } = context;
  if (settings.FIREWALL !== 'nftables') {
    machine.note('FIREWALL is off, so any address can open connections to all ports');
    return;
  }
  await install(context, 'nftables.conf', FILTER.rules);
  if (machine.exists(FILTER.machine)) await files.addLines(FILTER.machine, [`include "${FILTER.rules}"`]);
  const { code, stdout } = await machine.query('systemctl', ['is-enabled', 'nftables.service']);
  if (code !== 0 || stdout.trim() !== 'enabled')
    machine.note(
      `${FILTER.machine} is not loaded at the start of the machine, so the ports are open until the agent has started: systemctl enable nftables`,
    );
  // A table of the running agent has its networks, which the base would remove.
  const table = ['list', 'table', 'inet', `branchgate_${settings.POSTGRES_PORT}`];
  if ((await machine.query('nft', table)).code !== 0)
    await machine.run('closed the ports until the agent has started', 'nft', [
      '--file',
      machine.at(FILTER.rules),
    ]);
  if (settings.SQL_PORT > 0)
    machine.note(
      `port ${settings.SQL_PORT} is open to the networks of all rules, for SQL over WebSocket (SQL_PORT=0: off); a firewall in front of this machine must let it through as well`,
    );
}

async function removeFilter({ machine, settings }: Context): Promise<void> {
  const table = ['table', 'inet', `branchgate_${settings.POSTGRES_PORT}`];
  if ((await machine.query('nft', ['list', ...table])).code === 0)
    await machine.run('removed the packet filter', 'nft', ['delete', ...table]);
}

export const VOLUME_STEP: Step = {
  name: 'volume',
  what: 'say whether branches share blocks on the volume of the data',
  apply: checkVolume,
};

export const LOGS_STEP: Step = {
  name: 'logs',
  what: "put PostgreSQL's logs into --log-directory, and rotate PgBouncer's",
  apply: placeLogs,
  takeBack: endRotation,
};

export const KERNEL_STEP: Step = {
  name: 'kernel',
  what: 'let Linux refuse memory that it does not have',
  apply: setKernel,
  takeBack: takeBackKernel,
};

export const FIREWALL_STEP: Step = {
  name: 'firewall',
  what: 'close the ports to unknown networks',
  apply: filterPackets,
  takeBack: removeFilter,
};
