import { chownSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeRulesFolder } from '../../agent/access/rule-files.ts';
import { standbyMark } from '../../agent/pooler/restart-state.ts';
import { readSettings, rulesFolder } from '../../agent/process/settings.ts';
import {
  pgbouncerIni,
  pgHbaConf,
  pgIdentConf,
  postgresqlConf,
  type ServerLayout,
} from '../../agent/servers/configuration.ts';
import { agentSettings, LOOPBACK, type Site } from '../stack/programs.ts';
import { serverCertificate } from './certificate.ts';

/** Writes the configuration of both servers at each start, because ports and folders may have changed. */
export async function configureServers(site: Site): Promise<void> {
  const { host, user, ports } = site;
  const settings = readSettings(agentSettings(site));
  const rulesDir = rulesFolder(settings);
  const layout: ServerLayout = {
    listenAddresses: LOOPBACK,
    postgres: { port: ports.DIRECT_PORT, socketDir: host.sockets },
    pooler: {
      port: ports.POOLED_PORT,
      socketDir: host.sockets,
      logFile: settings.POOLER_LOG,
      maxClients: settings.POOLER_MAX_CLIENTS,
      standbyPort: settings.POOLER_STANDBY_PORT,
    },
    dataDir: host.data,
    tls: await serverCertificate(host.tls, user),
    rulesDir,
    standbyMark: standbyMark(settings),
    agentUser: user.name,
    poolerUser: user.name,
  };
  const files = {
    // The agent's configuration overrides initdb's settings for this machine.
    'postgresql.conf': `include '${join(host.data, 'postgresql.conf')}'\n${postgresqlConf(layout)}`,
    'pg_hba.conf': pgHbaConf(layout),
    'pg_ident.conf': pgIdentConf(layout),
    'pgbouncer.ini': pgbouncerIni(layout),
  };
  for (const [name, text] of Object.entries(files)) {
    const path = join(host.config, name);
    writeFileSync(path, text);
    chownSync(path, user.uid, user.gid);
  }
  await makeRulesFolder(rulesDir);
  for (const name of ['', ...readdirSync(rulesDir)]) chownSync(join(rulesDir, name), user.uid, user.gid);
}
