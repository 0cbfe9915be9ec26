import { join } from 'node:path';
import { CONFIGURATION_FILES, type ConfigurationFile } from './configuration-files.ts';
import type { Context } from './context.ts';
import { POOLER_UNIT } from './find-servers.ts';
import type { Placing } from './machine.ts';

/** One thing that joining a gateway needs. Each can be repeated, and changes nothing once it is done. */
export interface Step {
  name: string;
  /** For the help: what it does, as an infinitive. */
  what: string;
  apply: (context: Context) => Promise<void>;
  /** What `leave` does about it, next to putting back the files. */
  takeBack?: (context: Context) => Promise<void>;
  /** Both servers need it until they run with the configuration of the operator again. */
  isTakenBackLate?: boolean;
}

export const UNITS = '/etc/systemd/system';
export const STANDBY_UNIT = 'pgbouncer-standby.service';
export const STANDBY_PATH = 'pgbouncer-standby.path';
export const AGENT_UNIT = 'branchgate-agent.service';

/** Installs one of the printed files. */
export const install = (
  { files, layout }: Context,
  file: ConfigurationFile,
  path: string,
  placing?: Placing,
): Promise<void> => files.write(path, CONFIGURATION_FILES[file](layout), placing);

/** Files of PostgreSQL, by their meaning. */
export const postgresFiles = ({ servers: { postgres } }: Context) => {
  const inFolder = (name: string) => join(postgres.configDir, name);
  return {
    main: inFolder('postgresql.conf'),
    settings: inFolder('conf.d/branchgate.conf'),
    logs: inFolder('conf.d/branchgate-logs.conf'),
    archive: inFolder('conf.d/branchgate-archive.conf'),
    // After that of the backups, which its archive_command contains.
    past: inFolder('conf.d/branchgate-past.conf'),
    hba: inFolder('pg_hba.conf'),
    ident: inFolder('pg_ident.conf'),
    unit: `${UNITS}/${postgres.unit}.d/branchgate.conf`,
  };
};

export const POOLER_FILES = {
  main: '/etc/pgbouncer/pgbouncer.ini',
  standby: '/etc/pgbouncer/pgbouncer-standby.ini',
  unit: `${UNITS}/${POOLER_UNIT}.d/branchgate.conf`,
};
export const STANDBY_FILES = [POOLER_FILES.standby, `${UNITS}/${STANDBY_UNIT}`, `${UNITS}/${STANDBY_PATH}`];

export const AGENT_FILES = {
  firewall: `${UNITS}/${AGENT_UNIT}.d/firewall.conf`,
  folders: `${UNITS}/${AGENT_UNIT}.d/folders.conf`,
};

export const hasStandby = ({ settings }: Context) => settings.POOLER_STANDBY_PORT > 0;
