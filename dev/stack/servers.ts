import {
  chownSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { makeRulesFolder } from '../../agent/access/rule-files.ts';
import { probeCloneMethod } from '../../agent/cloning/clone-method.ts';
import { methodOfPast, recoveryHours } from '../../agent/past/recovery-hours.ts';
import { standbyMark } from '../../agent/pooler/restart-state.ts';
import { extensionsFolder, pastFolder, readSettings, rulesFolder } from '../../agent/process/settings.ts';
import { pastConf } from '../../agent/servers/backup-configuration.ts';
import {
  pgbouncerIni,
  pgHbaConf,
  pgIdentConf,
  postgresqlConf,
  type ServerLayout,
} from '../../agent/servers/configuration.ts';
import { type OsUser, runAs } from './os-user.ts';
import { agentSettings, LOOPBACK, type Site } from './programs.ts';

const YEARS = 10;

interface Certificates {
  certFile: string;
  keyFile: string;
  /** Certificate of the authority that signed `certFile`. */
  caFile: string;
}

export const certificatesIn = (dir: string): Certificates => ({
  certFile: join(dir, 'server.crt'),
  keyFile: join(dir, 'server.key'),
  caFile: join(dir, 'ca.crt'),
});

const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
const VALIDITY = ['-days', String(365 * YEARS)];

/**
 * Clients that verify strictly accept a server certificate only from an authority, and with these extensions.
 */
const SERVER_EXTENSIONS = `subjectAltName=DNS:localhost,DNS:*.db.localhost,IP:127.0.0.1
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
`;

/**
 * The certificate of both servers and that of its authority, created at the first start and owned by their
 * user. The key of the authority is deleted, so it can sign nothing else.
 */
export async function serverCertificate(dir: string, user: OsUser): Promise<Certificates> {
  const certificates = certificatesIn(dir);
  if (existsSync(certificates.certFile) && existsSync(certificates.caFile)) return certificates;
  const file = (name: string) => join(dir, name);
  const openssl = (...command: string[]) => runAs(user, 'openssl', command, { cwd: dir });
  // openssl makes key files readable only by their owner.
  const authority = ['-subj', '/CN=branchgate local authority', '-addext', 'keyUsage=critical,keyCertSign'];
  const files = ['-keyout', file('ca.key'), '-out', certificates.caFile];
  await openssl('req', '-x509', '-batch', ...NEW_KEY, ...VALIDITY, ...authority, ...files);
  const request = ['-subj', '/CN=localhost', '-keyout', certificates.keyFile, '-out', file('server.csr')];
  await openssl('req', '-new', '-batch', ...NEW_KEY, ...request);
  await writeFile(file('server.ext'), SERVER_EXTENSIONS);
  const signer = ['-CA', certificates.caFile, '-CAkey', file('ca.key'), '-CAcreateserial'];
  const signed = ['-extfile', file('server.ext'), '-out', file('server.crt.new')];
  await openssl('x509', '-req', '-in', file('server.csr'), ...signer, ...VALIDITY, ...signed);
  for (const name of ['ca.key', 'ca.srl', 'server.csr', 'server.ext']) rmSync(file(name), { force: true });
  renameSync(file('server.crt.new'), certificates.certFile);
  return certificates;
}

/** Copies what `serverCertificate` has made in a folder to that of another host of this machine. */
export function copyCertificate(from: string, to: string, user: OsUser): Certificates {
  for (const name of readdirSync(from)) {
    copyFileSync(join(from, name), join(to, name));
    chownSync(join(to, name), user.uid, user.gid);
  }
  return certificatesIn(to);
}

/** Writes the configuration of both servers at each start, because ports and folders may have changed. */
export async function configureServers(site: Site): Promise<void> {
  const { host, user, ports } = site;
  const settings = readSettings(agentSettings(site));
  const rulesDir = rulesFolder(settings);
  const layout: ServerLayout = {
    listenAddresses: site.settings.environment.LISTEN_ADDRESSES ?? LOOPBACK,
    postgres: { port: ports.DIRECT_PORT, socketDir: host.sockets },
    pooler: {
      port: ports.POOLED_PORT,
      socketDir: host.sockets,
      logFile: settings.POOLER_LOG,
      maxClients: settings.POOLER_MAX_CLIENTS,
      standbyPort: settings.POOLER_STANDBY_PORT,
    },
    sqlPort: settings.SQL_PORT,
    dataDir: host.data,
    pastDir: pastFolder(settings),
    tls: await serverCertificate(host.tls, user),
    rulesDir,
    extensionsDir: extensionsFolder(settings),
    standbyMark: standbyMark(settings),
    agentUser: user.name,
    poolerUser: user.name,
  };
  const method = await methodOfPast(settings, await probeCloneMethod(host.data));
  const keepsPast = recoveryHours(settings, method) > 0;
  if (keepsPast) {
    mkdirSync(layout.pastDir, { recursive: true, mode: 0o700 });
    chownSync(layout.pastDir, user.uid, user.gid);
  }
  const program = `${site.binaries.node} ${site.binaries.agent}`;
  const files = {
    // The agent's configuration overrides initdb's settings for this machine.
    'postgresql.conf': `include '${join(host.data, 'postgresql.conf')}'\n${postgresqlConf(layout)}${keepsPast ? pastConf(layout, { program }) : ''}`,
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
