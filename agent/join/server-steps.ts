import { probeCloneMethod } from '../cloning/clone-method.ts';
import { methodOfPast, recoveryHours } from '../past/recovery-hours.ts';
import { PLATFORM_ROLE } from '../postgres/connect.ts';
import { ARCHIVE_WAL } from '../servers/archive-command.ts';
import { pastConf } from '../servers/backup-configuration.ts';
import { type Context, SETTINGS_FILE } from './context.ts';
import { POOLER_UNIT } from './find-servers.ts';
import { lastLine, StepFailure } from './machine.ts';
import { awaitPostgres, disable, enable, isActive, psql, reloadUnits, restartOutdated } from './services.ts';
import {
  AGENT_FILES,
  AGENT_UNIT,
  hasStandby,
  install,
  POOLER_FILES,
  postgresFiles,
  STANDBY_FILES,
  STANDBY_PATH,
  STANDBY_UNIT,
  type Step,
  UNITS,
} from './step.ts';

const isWithin = (path: string, folder: string) => path === folder || path.startsWith(`${folder}/`);

const needsCapability = (context: Context) => context.settings.FIREWALL === 'nftables' || hasStandby(context);

async function checkServers({ machine, servers: { postgres, poolerVersion } }: Context): Promise<void> {
  machine.note(
    `PostgreSQL ${postgres.version} in ${postgres.dataDir}, port ${postgres.port}; PgBouncer ${poolerVersion}`,
  );
  if (!postgres.isRunning)
    await machine.run(`started ${postgres.unit}`, 'systemctl', ['start', postgres.unit]);
}

async function writeSettings({ machine, files, additions, settings, hasNft }: Context): Promise<void> {
  if (!settings.GATEWAY_URL)
    throw new StepFailure('usage', 'the address of the gateway is missing: give --gateway');
  await files.addLines(SETTINGS_FILE, additions);
  if (!hasNft)
    machine.note(
      'without nftables, silent sockets of anyone can occupy both ports, and PgBouncer is never restarted: apt install nftables, and run join again',
    );
}

async function makeRole(context: Context): Promise<void> {
  if ((await psql(context, PLATFORM_ROLE, 'SELECT 1')) !== null) return;
  const { machine, servers } = context;
  const found = await psql(
    context,
    servers.user,
    `SELECT count(*) FROM pg_roles WHERE rolname = '${PLATFORM_ROLE}' AND rolsuper AND rolcanlogin`,
  );
  if (found === '1') return;
  if (found === null && !machine.isDryRun)
    throw new StepFailure(
      'unreachable',
      `PostgreSQL accepts neither ${PLATFORM_ROLE} nor ${servers.user} as the system user ${servers.user}: check pg_hba.conf and pg_ident.conf, and that the cluster runs`,
    );
  await machine.change(`created the superuser ${PLATFORM_ROLE} of PostgreSQL`, async () => {
    const attributes = `${PLATFORM_ROLE} SUPERUSER LOGIN`;
    const statement = `DO $$ BEGIN CREATE ROLE ${attributes}; EXCEPTION WHEN duplicate_object THEN ALTER ROLE ${attributes}; END $$`;
    if ((await psql(context, servers.user, statement)) === null)
      throw new StepFailure(
        'failed',
        `the role ${PLATFORM_ROLE} could not be created: see the log of PostgreSQL`,
      );
  });
}

/** The databases belong to it, so it stays. */
async function reportRole(context: Context): Promise<void> {
  const statement =
    "SELECT count(*) FROM pg_database WHERE NOT datistemplate AND datname NOT IN ('postgres', 'branchgate')";
  const count =
    (await psql(context, PLATFORM_ROLE, statement)) ?? (await psql(context, context.servers.user, statement));
  context.machine.note(`the role ${PLATFORM_ROLE} and ${count ?? 'all'} databases stay`);
}

async function configurePostgres(context: Context): Promise<void> {
  const { machine, files, servers } = context;
  const paths = postgresFiles(context);
  if (!/^\s*include_dir\s*=?\s*'conf\.d'/m.test(machine.read(paths.main) ?? ''))
    await files.addLines(paths.main, ["include_dir = 'conf.d'"]);
  await install(context, 'postgresql.conf', paths.settings);
  const own = { mode: 0o640, owner: servers.user };
  await install(context, 'pg_ident.conf', paths.ident, own);
  await install(context, 'pg_hba.conf', paths.hba, own);
}

async function configurePooler(context: Context): Promise<void> {
  const own = { mode: 0o640, owner: context.servers.user };
  await install(context, 'pgbouncer.ini', POOLER_FILES.main, own);
  if (hasStandby(context)) await install(context, 'pgbouncer-standby.ini', POOLER_FILES.standby, own);
}

async function installUnits(context: Context): Promise<void> {
  const { machine, files, servers, settings, options, layout } = context;
  await install(context, 'postgresql.service.conf', postgresFiles(context).unit);
  await install(context, 'pgbouncer.service.conf', POOLER_FILES.unit);
  if (needsCapability(context)) await install(context, 'branchgate-agent.service.conf', AGENT_FILES.firewall);
  const folders = [settings.PGDATA_DIR, layout.pastDir, options.logDirectory ?? ''].filter(
    (path) => path && !isWithin(path, '/var/lib/postgresql'),
  );
  if (folders.length > 0) {
    const text = `# Folders outside of /var/lib/postgresql in which the agent deletes leftovers and old logs.\n[Service]\nReadWritePaths=${folders.join(' ')}\n`;
    await files.write(AGENT_FILES.folders, text);
  }
  await reloadUnits(machine, [servers.postgres.unit, POOLER_UNIT, AGENT_UNIT]);
}

async function installStandby(context: Context): Promise<void> {
  const { machine, servers } = context;
  if (!hasStandby(context)) {
    machine.note(
      servers.hasPeers
        ? 'POOLER_STANDBY_PORT is 0, so a restart of PgBouncer disconnects its clients'
        : `PgBouncer ${servers.poolerVersion} cannot have a standby, so its restart disconnects its clients: install 1.19 or later`,
    );
    return;
  }
  await install(context, 'pgbouncer-standby.service', `${UNITS}/${STANDBY_UNIT}`);
  await install(context, 'pgbouncer-standby.path', `${UNITS}/${STANDBY_PATH}`);
  await enable(machine, STANDBY_PATH);
}

async function restartServers(context: Context): Promise<void> {
  const { machine, servers } = context;
  await reloadUnits(machine, [servers.postgres.unit, POOLER_UNIT]);
  const { main, settings, logs, hba, ident, unit } = postgresFiles(context);
  await restartOutdated(machine, servers.postgres.unit, [main, settings, logs, hba, ident, unit]);
  if (!machine.isDryRun) await awaitPostgres(context, PLATFORM_ROLE);
  await restartOutdated(machine, POOLER_UNIT, [POOLER_FILES.main, POOLER_FILES.unit]);
}

/** After the files of the operator are back. */
export async function takeBackServers(context: Context): Promise<void> {
  const { machine, servers } = context;
  await reloadUnits(machine, [servers.postgres.unit, POOLER_UNIT]);
  for (const unit of [servers.postgres.unit, POOLER_UNIT])
    if (await isActive(machine, unit)) await machine.run(`restarted ${unit}`, 'systemctl', ['restart', unit]);
}

const BACKUP_FILES = {
  settings: '/etc/pgbackrest/pgbackrest.conf',
  unit: `${UNITS}/branchgate-backup.service`,
  timer: `${UNITS}/branchgate-backup.timer`,
};
const BACKUP_UNIT = 'branchgate-backup.service';
const BACKUP_TIMER = 'branchgate-backup.timer';

/** PostgreSQL keeps all WAL that the archive refuses, so it archives only when the archive works. */
async function prepareBackups(context: Context): Promise<void> {
  const { machine, servers } = context;
  if ((await machine.query('pgbackrest', ['version'])).code !== 0) {
    machine.note(
      'there are no backups, so a lost disk takes all databases: apt install pgbackrest, and run join again',
    );
    return;
  }
  // A repository of the operator is used as it is.
  if (!machine.read(BACKUP_FILES.settings)?.includes('[branchgate]'))
    await install(context, 'pgbackrest.conf', BACKUP_FILES.settings, { mode: 0o640, owner: servers.user });
  const { archive } = postgresFiles(context);
  if (!machine.exists(archive)) {
    const words = ['--stanza=branchgate', 'stanza-create'];
    let failure = '';
    await machine.change('created the stanza of the backups', async () => {
      const ran = await machine.query('pgbackrest', words, { user: servers.user });
      if (ran.code !== 0) failure = lastLine(ran);
      return ran.code === 0;
    });
    if (failure) {
      machine.note(
        `there are no backups, because pgBackRest refuses (${failure}): mend that, and run join again`,
      );
      return;
    }
  }
  await install(context, 'postgresql.archive.conf', archive);
  if ((await restartOutdated(machine, servers.postgres.unit, [archive])) && !machine.isDryRun)
    await awaitPostgres(context, PLATFORM_ROLE);
  await install(context, 'branchgate-backup.service', BACKUP_FILES.unit);
  await install(context, 'branchgate-backup.timer', BACKUP_FILES.timer);
  await enable(machine, BACKUP_TIMER);
  if (await lacksBackup(context)) {
    await machine.change('made a first backup', async () => {
      // A large cluster takes hours.
      const { code } = await machine.query('systemctl', ['start', BACKUP_UNIT], { within: 0 });
      if (code !== 0) machine.note(`the first backup failed: journalctl --unit ${BACKUP_UNIT}`);
      return code === 0;
    });
  }
  machine.note(
    `the repository is set in ${BACKUP_FILES.settings}: put it on another machine or in an object store`,
  );
}

/** A standby cannot make one. */
const lacksBackup = async (context: Context): Promise<boolean> =>
  (await psql(
    context,
    PLATFORM_ROLE,
    "SELECT NOT pg_is_in_recovery() AND NOT EXISTS (SELECT FROM pg_ls_waldir() WHERE name LIKE '%.backup')",
  )) === 't';

/**
 * PostgreSQL has one archive_command. One of the operator stays as it is, and that of the backups is a part of the one that
 * also stores for recoveries.
 */
async function preparePast(context: Context): Promise<void> {
  const { machine, files, servers, settings, layout } = context;
  const { archive, past } = postgresFiles(context);
  const dataDir = machine.at(servers.postgres.dataDir);
  const folders = { PGDATA_DIR: dataDir, PAST_DIR: machine.at(layout.pastDir) };
  const method = await methodOfPast(folders, await probeCloneMethod(dataDir));
  const isWanted = recoveryHours(settings, method) > 0;
  const present = (await psql(context, PLATFORM_ROLE, 'SHOW archive_command')) ?? '';
  const isOperators =
    /[^()\s]/.test(present) && !/stanza=branchgate|archive-wal|^\(disabled\)$/.test(present);
  if (isWanted && isOperators) {
    machine.note(
      `archive_command is yours (${present}), so no second of the past can be recovered: add \`&& branchgate-agent ${ARCHIVE_WAL} ${layout.pastDir} %p\` to it, or set RECOVERY_WINDOW_HOURS=0`,
    );
    return;
  }
  if (!isWanted) await files.drop([past]);
  else {
    await machine.makeFolder(layout.pastDir, { mode: 0o700, owner: servers.user });
    await files.write(past, pastConf(layout, { hasBackups: machine.exists(archive) }));
    machine.note(`keeps the past for recoveries in ${layout.pastDir}`);
  }
  if ((await restartOutdated(machine, servers.postgres.unit, [past])) && !machine.isDryRun)
    await awaitPostgres(context, PLATFORM_ROLE);
}

async function endBackups({ machine, files }: Context): Promise<void> {
  if (files.record().files[BACKUP_FILES.timer]) await disable(machine, BACKUP_TIMER);
}

export const SERVERS_STEP: Step = {
  name: 'servers',
  what: 'find PostgreSQL and PgBouncer',
  apply: checkServers,
};

export const SETTINGS_STEP: Step = {
  name: 'settings',
  what: `add the settings of this host to ${SETTINGS_FILE}`,
  apply: writeSettings,
};

/** The configuration of both servers. */
export const SERVER_STEPS: readonly Step[] = [
  { name: 'role', what: `create PostgreSQL's role ${PLATFORM_ROLE}`, apply: makeRole, takeBack: reportRole },
  { name: 'postgresql', what: 'write the configuration of PostgreSQL', apply: configurePostgres },
  { name: 'pgbouncer', what: 'write the configuration of PgBouncer', apply: configurePooler },
  { name: 'units', what: 'limit the memory of both servers', apply: installUnits },
  {
    name: 'standby',
    what: 'prepare the standby of PgBouncer',
    apply: installStandby,
    takeBack: async ({ machine, files }) => {
      if (!STANDBY_FILES.some((path) => files.record().files[path])) return;
      await disable(machine, STANDBY_PATH);
      if (await isActive(machine, STANDBY_UNIT))
        await machine.run(`stopped ${STANDBY_UNIT}`, 'systemctl', ['stop', STANDBY_UNIT]);
    },
  },
];

export const RESTART_STEP: Step = {
  name: 'restart',
  what: 'restart both servers, if they are older than their configuration',
  apply: restartServers,
};

export const BACKUP_STEP: Step = {
  name: 'backups',
  what: 'archive the WAL and back up every day, with pgBackRest',
  apply: prepareBackups,
  takeBack: endBackups,
};

export const PAST_STEP: Step = {
  name: 'past',
  what: 'archive the WAL for recoveries to any second, where files can share blocks',
  apply: preparePast,
};
