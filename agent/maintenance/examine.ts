import { access, constants, readFile, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { CONNECTION_LOGS, type ConnectionLog } from '../attempts/connection-logs.ts';
import type { CloneMethod, Host } from '../host.ts';
import { withConsole } from '../pooler/console.ts';
import { atLeast, readPoolerVersion } from '../pooler/version.ts';
import {
  LOGIN_RETRY_SECONDS,
  RESERVED_FOR_AGENT,
  RULE_FILES,
  SERVER_IDLE_SECONDS,
  SPARE_POOLER_CLIENTS,
} from '../servers/configuration.ts';
import { type AgentSettings, rulesFolder } from '../settings.ts';

/** A fault of the set-up. With a `problem`, branches do not work or are not safe. */
export interface Finding {
  severity: 'problem' | 'advice';
  /** What is wrong, and what to do about it. */
  sentence: string;
}

interface Facts {
  settings: AgentSettings;
  cloneMethod: CloneMethod;
  postgres: Record<string, string>;
  pooler: Record<string, string>;
  poolerVersion: string;
  hbaText: string;
  sameDataDirectory: boolean;
  readsLogs: boolean;
}

type Check = Finding & { fine: (facts: Facts) => boolean };

const problem = (fine: Check['fine'], sentence: string): Check => ({ severity: 'problem', fine, sentence });
const advice = (fine: Check['fine'], sentence: string): Check => ({ severity: 'advice', fine, sentence });

const ruleFile = ({ settings }: Facts, file: keyof typeof RULE_FILES) =>
  join(rulesFolder(settings), RULE_FILES[file]);

/** `branchgate-agent configuration` prints a set-up that passes all of these. */
const CHECKS: readonly Check[] = [
  problem(
    ({ postgres }) => Number(postgres.server_version_num) >= 180_000,
    'PostgreSQL is older than 18, which can neither share blocks nor log authenticated users: upgrade it.',
  ),
  problem(
    ({ sameDataDirectory }) => sameDataDirectory,
    "PGDATA_DIR is not this PostgreSQL's data directory: correct it.",
  ),
  problem(
    ({ postgres }) => postgres.ssl === 'on',
    'PostgreSQL has TLS off, so no client can connect: set ssl = on.',
  ),
  problem(
    (facts) => facts.hbaText.includes(ruleFile(facts, 'postgresHba')),
    "pg_hba.conf does not include the agent's rules: add the line that `configuration` prints.",
  ),
  problem(
    ({ poolerVersion }) => atLeast(poolerVersion, [1, 18, 0]),
    'PgBouncer is older than 1.18, with which the agent is not tested: upgrade it.',
  ),
  problem(
    ({ pooler }) => pooler.pool_mode === 'transaction',
    'PgBouncer does not pool by transaction, so a busy source can never be cloned: set pool_mode = transaction.',
  ),
  problem(
    ({ pooler }) => /^(require|verify-)/.test(pooler.client_tls_sslmode ?? ''),
    'PgBouncer accepts clients without TLS: set client_tls_sslmode = require.',
  ),
  problem(
    (facts) =>
      facts.pooler.auth_type === 'hba' &&
      facts.pooler.auth_hba_file === ruleFile(facts, 'poolerHba') &&
      facts.pooler.auth_file === ruleFile(facts, 'poolerUsers'),
    "PgBouncer does not use the agent's rules: set auth_type, auth_hba_file and auth_file as `configuration` prints them.",
  ),
  problem(
    ({ postgres }) =>
      postgres.logging_collector === 'on' &&
      /\bjsonlog\b/.test(postgres.log_destination ?? '') &&
      /\b(authentication|all|on)\b/.test(postgres.log_connections ?? ''),
    'PostgreSQL does not log connections, so attempts are not limited: set logging_collector, log_destination and log_connections as `configuration` prints them.',
  ),
  problem(
    ({ settings, pooler }) => pooler.logfile === settings.POOLER_LOG && pooler.log_connections === '1',
    'PgBouncer does not log connections to POOLER_LOG, so attempts are not limited: set logfile and log_connections as `configuration` prints them.',
  ),
  problem(
    ({ readsLogs }) => readsLogs,
    "The agent cannot read both servers' logs, so attempts are not limited: grant its user read access.",
  ),
  advice(
    ({ settings, pooler }) =>
      Number(pooler.max_client_conn) === settings.POOLER_MAX_CLIENTS + SPARE_POOLER_CLIENTS,
    'PgBouncer accepts another number of clients than POOLER_MAX_CLIENTS provides for: set max_client_conn as `configuration` prints it.',
  ),
  advice(
    ({ poolerVersion }) => atLeast(poolerVersion, [1, 25, 2]),
    'PgBouncer is older than 1.25.2 and has known vulnerabilities: upgrade it before exposing it to a network.',
  ),
  advice(
    ({ pooler }) => Number(pooler.server_login_retry) <= LOGIN_RETRY_SECONDS,
    `A clone can delay its source's clients: set PgBouncer's server_login_retry = ${LOGIN_RETRY_SECONDS}.`,
  ),
  advice(
    ({ pooler }) => Number(pooler.server_idle_timeout) <= SERVER_IDLE_SECONDS,
    `Unused branches can occupy every connection: set PgBouncer's server_idle_timeout = ${SERVER_IDLE_SECONDS}.`,
  ),
  advice(
    ({ postgres }) => postgres.max_prepared_transactions === '0',
    'A forgotten prepared transaction would block clones and drops: set max_prepared_transactions = 0.',
  ),
  advice(
    ({ postgres }) => Number(postgres.superuser_reserved_connections) >= RESERVED_FOR_AGENT,
    `Tenants can take every connection from the agent: set superuser_reserved_connections = ${RESERVED_FOR_AGENT}.`,
  ),
  advice(
    ({ cloneMethod }) => cloneMethod === 'reflink',
    'The file system of the data directory has no reflinks, so every clone copies all bytes: use XFS or Btrfs.',
  ),
];

/** Versions and settings of this host's servers, and the faults among them. @throws HostError POOLER_UNAVAILABLE */
export async function examine({ settings, postgres, cloneMethod }: Host) {
  const [{ rows }, { config, version }] = await Promise.all([
    postgres.query<{ name: string; setting: string }>('SELECT name, setting FROM pg_settings'),
    withConsole(settings, async (console) => {
      const config = await console.query<{ key: string; value: string }>('SHOW CONFIG');
      return { config: config.rows, version: await readPoolerVersion(console) };
    }),
  ]);
  const facts: Facts = {
    settings,
    cloneMethod,
    postgres: Object.fromEntries(rows.map(({ name, setting }) => [name, setting])),
    pooler: Object.fromEntries(config.map(({ key, value }) => [key, value])),
    poolerVersion: version,
    hbaText: '',
    sameDataDirectory: false,
    readsLogs: (await Promise.all(CONNECTION_LOGS.map((log) => canRead(log, settings)))).every(Boolean),
  };
  facts.hbaText = await readFile(facts.postgres.hba_file ?? '', 'utf8').catch(() => '');
  facts.sameDataDirectory =
    (await realpath(settings.PGDATA_DIR).catch(() => null)) ===
    (await realpath(facts.postgres.data_directory ?? ''));
  return {
    postgresVersion: facts.postgres.server_version ?? '',
    poolerVersion: facts.poolerVersion,
    findings: CHECKS.filter(({ fine }) => !fine(facts)).map(
      ({ severity, sentence }): Finding => ({ severity, sentence }),
    ),
  };
}

async function canRead({ locate }: ConnectionLog, settings: AgentSettings): Promise<boolean> {
  try {
    await access(locate(settings) ?? '', constants.R_OK);
    return true;
  } catch {
    return false;
  }
}
