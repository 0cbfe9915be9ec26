import { userInfo } from 'node:os';
import { Argument, Command } from 'commander';
import { baseRuleset } from '../firewall/ruleset.ts';
import { standbyMark } from '../pooler/restart-state.ts';
import { rulesFolder } from '../process/settings.ts';
import { archiveConf, backupTimer, backupUnit, pgBackRestConf } from '../servers/backup-configuration.ts';
import {
  pgbouncerIni,
  pgHbaConf,
  pgIdentConf,
  postgresqlConf,
  type ServerLayout,
  standbyIni,
} from '../servers/configuration.ts';
import { agentUnit, poolerUnit, postgresUnit, standbyPath, standbyUnit } from '../servers/unit-drop-ins.ts';
import { UsageError } from './exit-codes.ts';
import { readShellSettings } from './with-host.ts';

const FILES: Record<string, (layout: ServerLayout) => string> = {
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
  'pgbackrest.conf': pgBackRestConf,
  'branchgate-backup.service': backupUnit,
  'branchgate-backup.timer': backupTimer,
  'nftables.conf': ({ postgres, pooler }) =>
    baseRuleset({
      POSTGRES_PORT: postgres.port,
      POOLER_PORT: pooler.port,
      POOLER_STANDBY_PORT: pooler.standbyPort,
    }),
};

interface Options {
  tlsCert?: string;
  tlsKey?: string;
  listen: string;
  agentUser: string;
  poolerUser?: string;
}

/** Prints one configuration file for a new host, from the agent's own settings. */
export const configurationCommand = () =>
  new Command('configuration')
    .description(
      'Print a configuration file or a systemd unit of PostgreSQL, PgBouncer, the agent or the backups, or the base of its packet filter',
    )
    .addArgument(new Argument('<file>').choices(Object.keys(FILES)))
    .option('--tls-cert <path>', 'TLS certificate of both servers (PEM), for files that name it')
    .option('--tls-key <path>', 'private key of the certificate (PEM), for files that name it')
    .option('--listen <addresses>', 'addresses that both servers listen on', '*')
    .option('--agent-user <user>', "the agent's and PostgreSQL's system user", userInfo().username)
    .option('--pooler-user <user>', "PgBouncer's system user (default: the agent's)")
    .action((file: string, options: Options) => {
      const settings = readShellSettings();
      const layout: ServerLayout = {
        listenAddresses: options.listen,
        postgres: { port: settings.POSTGRES_PORT, socketDir: settings.POSTGRES_SOCKET_DIR },
        pooler: {
          port: settings.POOLER_PORT,
          socketDir: settings.POOLER_SOCKET_DIR,
          logFile: settings.POOLER_LOG,
          maxClients: settings.POOLER_MAX_CLIENTS,
          standbyPort: settings.POOLER_STANDBY_PORT,
        },
        dataDir: settings.PGDATA_DIR,
        // Evaluated only for the files that contain the paths.
        get tls() {
          return tlsFiles(options);
        },
        rulesDir: rulesFolder(settings),
        standbyMark: standbyMark(settings),
        agentUser: options.agentUser,
        poolerUser: options.poolerUser ?? options.agentUser,
      };
      process.stdout.write(FILES[file]?.(layout) ?? '');
    });

function tlsFiles({ tlsCert, tlsKey }: Options): ServerLayout['tls'] {
  if (!tlsCert || !tlsKey)
    throw new UsageError(
      '--tls-cert and --tls-key are missing: give the certificate and key of both servers',
    );
  return { certFile: tlsCert, keyFile: tlsKey };
}
