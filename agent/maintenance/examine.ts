import { access, constants, readFile, realpath } from 'node:fs/promises';
import { resolve } from 'node:path';
import { isMainDatabase } from '../../shared/branch/database-name.ts';
import { readDifferences } from '../access/networks.ts';
import { readBlocks } from '../blocks/stored-blocks.ts';
import type { CloneMethod } from '../cloning/create-clone.ts';
import { readDumpVersion } from '../dump/pg-dump.ts';
import { hasTable } from '../firewall/packet-filter.ts';
import { canGuard } from '../guard/watch-session.ts';
import { CONNECTION_LOGS, type ConnectionLog } from '../logs/connection-logs.ts';
import { readDrillState } from '../past/drills.ts';
import type { Past } from '../past/past.ts';
import { readPoolerVersion, withAdminConsole } from '../pooler/admin-console.ts';
import { readOutdatedCollations } from '../postgres/collations.ts';
import type { Pool, Queryable } from '../postgres/connect.ts';
import { readOpenToPublic } from '../postgres/databases.ts';
import { readRefusedExtensions } from '../postgres/extensions.ts';
import { readOldestIds } from '../postgres/oldest-ids.ts';
import { readProjectExtensions } from '../postgres/project-extensions.ts';
import type { AgentSettings } from '../process/settings.ts';
import { endOfCertificates, namesOfCertificates } from '../servers/certificate.ts';
import { examinePort } from '../sql/examine-port.ts';
import { type ClonedDatabase, examineDatabases, examineVolume } from '../volumes/examine-volume.ts';
import { isShortOfInodes, readVolumes } from '../volumes/volumes.ts';
import { CHECKS, type Facts, type Finding, readBackupState, readMachineLimits } from './checks.ts';

export interface ExaminedHost {
  settings: AgentSettings;
  postgres: Pool;
  cloneMethod: CloneMethod;
  past: Past;
}

/**
 * Versions and settings of this host's servers, and the faults among them. The place of each database on the
 * disk is looked at by `doctor` only, because that takes a process for each.
 * @throws HostError POOLER_UNAVAILABLE
 */
export async function examine(
  { settings, postgres, cloneMethod, past }: ExaminedHost,
  { eachDatabase = false } = {},
) {
  const [ofPostgres, { config, version }] = await Promise.all([
    readSettings(postgres),
    readPoolerSettings(settings),
  ]);
  const volumes = await readVolumes(settings);
  const facts: Facts = {
    settings,
    cloneMethod,
    postgres: ofPostgres,
    pooler: config,
    poolerVersion: version,
    hbaText: '',
    identText: '',
    backup: await readBackupState(postgres),
    past: await past.state(),
    drills: await readDrillState({ settings, postgres, past }),
    machine: await readMachineLimits(settings.PGDATA_DIR),
    refusedExtensions: await readRefusedExtensions(settings, postgres),
    refusedProjectExtensions: (await readProjectExtensions(settings, postgres)).refused,
    certificateEndsAt: null,
    sqlPort: await examinePort(postgres, {
      port: settings.SQL_PORT,
      listens: ofPostgres.listen_addresses ?? '',
      certFile: certificatesOf(ofPostgres, config)[0] ?? '',
    }),
    sameDataDirectory: false,
    readsLogs: (await Promise.all(CONNECTION_LOGS.map((log) => canRead(log, settings)))).every(Boolean),
    canGuard: canGuard(settings),
    dumpVersion: await readDumpVersion(settings),
    freeBytes: Math.min(...volumes.map((volume) => volume.freeBytes)),
    isShortOfInodes: volumes.some((volume) => isShortOfInodes(volume)),
    isAdmissionCurrent: await isAdmissionCurrent(postgres),
    openToPublic: await readOpenToPublic(postgres),
    bootstrapRole: await readBootstrapRole(postgres),
    outdatedCollations: await readOutdatedCollations(postgres),
    oldestIds: await readOldestIds(postgres),
    filters: settings.FIREWALL === 'off' || (await hasTable(settings)),
  };
  facts.hbaText = await readFile(facts.postgres.hba_file ?? '', 'utf8').catch(() => '');
  facts.identText = await readFile(facts.postgres.ident_file ?? '', 'utf8').catch(() => '');
  const certificates = certificatesOf(facts.postgres, facts.pooler);
  facts.certificateEndsAt = await endOfCertificates(certificates);
  facts.sameDataDirectory =
    (await realpath(settings.PGDATA_DIR).catch(() => null)) ===
    (await realpath(facts.postgres.data_directory ?? ''));
  return {
    postgresVersion: facts.postgres.server_version ?? '',
    poolerVersion: facts.poolerVersion,
    backup: facts.backup,
    certificateNames: await namesOfCertificates(certificates),
    findings: [
      ...CHECKS.filter(({ fine }) => !fine(facts)).map(
        ({ severity, sentence }): Finding => ({
          severity: severity(facts),
          sentence: typeof sentence === 'string' ? sentence : sentence(facts),
        }),
      ),
      ...(eachDatabase ? await adviceOnDisk({ settings, postgres, cloneMethod }) : []).map(
        (sentence): Finding => ({ severity: 'advice', sentence }),
      ),
    ],
  };
}

const certificatesOf = (postgres: Facts['postgres'], pooler: Facts['pooler']): string[] => [
  resolve(postgres.data_directory ?? '', postgres.ssl_cert_file ?? ''),
  pooler.client_tls_cert_file ?? '',
];

/** When the first certificate of both servers ends, for the metrics. @throws HostError POOLER_UNAVAILABLE */
export async function readCertificateEnd({
  settings,
  postgres,
}: Pick<ExaminedHost, 'settings' | 'postgres'>): Promise<Date | null> {
  const [ofPostgres, ofPooler] = await Promise.all([readSettings(postgres), readPoolerSettings(settings)]);
  return endOfCertificates(certificatesOf(ofPostgres, ofPooler.config));
}

async function readSettings(postgres: Queryable): Promise<Record<string, string>> {
  const { rows } = await postgres.query<{ name: string; setting: string }>(
    // The agent's own session shows no activity.
    `SELECT name, CASE name WHEN 'track_activities' THEN coalesce(
       (SELECT setting FROM pg_file_settings AS file WHERE file.name = 'track_activities' AND applied ORDER BY seqno DESC LIMIT 1),
       boot_val) ELSE setting END AS setting
     FROM pg_settings`,
  );
  return Object.fromEntries(rows.map(({ name, setting }) => [name, setting]));
}

const readPoolerSettings = (settings: AgentSettings) =>
  withAdminConsole(settings, async (console) => {
    const { rows } = await console.query<{ key: string; value: string }>('SHOW CONFIG');
    return {
      config: Object.fromEntries(rows.map(({ key, value }) => [key, value])),
      version: await readPoolerVersion(console),
    };
  });

/** The superuser that `initdb` made. */
async function readBootstrapRole(db: Queryable): Promise<string> {
  const { rows } = await db.query<{ name: string }>(
    'SELECT rolname::text AS name FROM pg_roles WHERE oid = 10',
  );
  return rows[0]?.name ?? '';
}

async function isAdmissionCurrent(db: Queryable): Promise<boolean> {
  return (await readDifferences(db, await readBlocks(db))).length === 0;
}

async function adviceOnDisk({
  settings,
  postgres,
  cloneMethod,
}: Omit<ExaminedHost, 'past'>): Promise<string[]> {
  if (cloneMethod !== 'reflink') return [];
  const { rows } = await postgres.query<ClonedDatabase>(
    `SELECT datname AS name, pg_database.oid::text, pg_database_size(pg_database.oid)::float8 AS bytes
     FROM branch JOIN pg_database ON datname = database WHERE ${isMainDatabase('database')} ORDER BY 1`,
  );
  const { PGDATA_DIR, SNAPSHOT_COPY_ROOM } = settings;
  return [
    ...(await examineVolume(PGDATA_DIR)),
    ...(await examineDatabases(PGDATA_DIR, rows, SNAPSHOT_COPY_ROOM)),
  ];
}

async function canRead({ locate }: ConnectionLog, settings: AgentSettings): Promise<boolean> {
  try {
    await access(locate(settings) ?? '', constants.R_OK);
    return true;
  } catch {
    return false;
  }
}
