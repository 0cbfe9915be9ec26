import { baseRuleset } from '../firewall/ruleset.ts';
import { standbyMark } from '../pooler/restart-state.ts';
import { type AgentSettings, extensionsFolder, pastFolder, rulesFolder } from '../process/settings.ts';
import {
  archiveConf,
  backupTimer,
  backupUnit,
  pastConf,
  pgBackRestConf,
} from '../servers/backup-configuration.ts';
import {
  pgbouncerIni,
  pgHbaConf,
  pgIdentConf,
  postgresqlConf,
  type ServerLayout,
  standbyIni,
} from '../servers/configuration.ts';
import {
  agentUnit,
  logRotationTimer,
  logRotationUnit,
  poolerLogRotation,
  poolerUnit,
  postgresUnit,
  renewalTimer,
  renewalUnit,
  standbyPath,
  standbyUnit,
} from '../servers/unit-drop-ins.ts';

/** The files of a host by their names, which `configuration` prints and `join` installs. */
export const CONFIGURATION_FILES = {
  'postgresql.conf': postgresqlConf,
  'pg_hba.conf': pgHbaConf,
  'pg_ident.conf': pgIdentConf,
  'pgbouncer.ini': pgbouncerIni,
  'pgbouncer-standby.ini': standbyIni,
  'postgresql.service.conf': postgresUnit,
  'pgbouncer.service.conf': poolerUnit,
  'pgbouncer-standby.service': standbyUnit,
  'pgbouncer-standby.path': standbyPath,
  'branchgate-agent.service.conf': agentUnit,
  'postgresql.archive.conf': archiveConf,
  'postgresql.past.conf': (layout) => pastConf(layout),
  'pgbackrest.conf': pgBackRestConf,
  'branchgate-backup.service': backupUnit,
  'branchgate-backup.timer': backupTimer,
  'logrotate.conf': poolerLogRotation,
  'branchgate-logs.service': logRotationUnit,
  'branchgate-logs.timer': logRotationTimer,
  'branchgate-certificate.service': renewalUnit,
  'branchgate-certificate.timer': renewalTimer,
  'nftables.conf': ({ postgres, pooler, sqlPort }) =>
    baseRuleset({
      POSTGRES_PORT: postgres.port,
      POOLER_PORT: pooler.port,
      POOLER_STANDBY_PORT: pooler.standbyPort,
      SQL_PORT: sqlPort,
    }),
} as const satisfies Record<string, (layout: ServerLayout) => string>;

export type ConfigurationFile = keyof typeof CONFIGURATION_FILES;

type Chosen = Pick<ServerLayout, 'listenAddresses' | 'tls' | 'agentUser' | 'poolerUser'>;

/**
 * The servers as the agent's settings describe them. `tls` is read only for the files that name the
 * certificate.
 */
export const layoutOf = (settings: AgentSettings, chosen: Chosen): ServerLayout => ({
  listenAddresses: chosen.listenAddresses,
  postgres: { port: settings.POSTGRES_PORT, socketDir: settings.POSTGRES_SOCKET_DIR },
  pooler: {
    port: settings.POOLER_PORT,
    socketDir: settings.POOLER_SOCKET_DIR,
    logFile: settings.POOLER_LOG,
    maxClients: settings.POOLER_MAX_CLIENTS,
    standbyPort: settings.POOLER_STANDBY_PORT,
  },
  sqlPort: settings.SQL_PORT,
  dataDir: settings.PGDATA_DIR,
  pastDir: pastFolder(settings),
  get tls() {
    return chosen.tls;
  },
  rulesDir: rulesFolder(settings),
  extensionsDir: extensionsFolder(settings),
  standbyMark: standbyMark(settings),
  agentUser: chosen.agentUser,
  poolerUser: chosen.poolerUser,
});
