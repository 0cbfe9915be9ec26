import { access, constants, readFile, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { CONNECTION_LOGS, type ConnectionLog } from '../attempts/connection-logs.ts';
import type { CloneMethod, Host } from '../host.ts';
import { withConsole } from '../pooler/console.ts';
import {
  LOGIN_RETRY_SECONDS,
  RESERVED_FOR_AGENT,
  RULE_FILES,
  SERVER_IDLE_SECONDS,
} from '../servers/configuration.ts';
import { type AgentSettings, rulesFolder } from '../settings.ts';

/** Something about the set-up: a `problem` keeps branches from working or from being safe. */
export interface Finding {
  severity: 'problem' | 'advice';
  /** What is wrong and what to do. */
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

/** `branchgate-agent configuration` prints what all of these ask for. */
const CHECKS: readonly Check[] = [
  problem(
    ({ postgres }) => Number(postgres.server_version_num) >= 180_000,
    'PostgreSQL is older than 18: upgrade it, older ones can neither share blocks nor name who may connect.',
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
    'PgBouncer is older than 1.18: upgrade it, the agent is not tested with it.',
  ),
  problem(
    ({ pooler }) => pooler.pool_mode === 'transaction',
    'PgBouncer does not pool by transaction, so a busy source can never be cloned: set pool_mode = transaction.',
  ),
  problem(
    ({ pooler }) => /^(require|verify-)/.test(pooler.client_tls_sslmode ?? ''),
    'PgBouncer takes clients without TLS: set client_tls_sslmode = require.',
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
    'PostgreSQL does not log who connects, so attempts are not limited: set logging_collector, log_destination and log_connections as `configuration` prints them.',
  ),
  problem(
    ({ settings, pooler }) => pooler.logfile === settings.POOLER_LOG && pooler.log_connections === '1',
    'PgBouncer does not log who connects into POOLER_LOG, so attempts are not limited: set logfile and log_connections as `configuration` prints them.',
  ),
  problem(
    ({ readsLogs }) => readsLogs,
    "The agent can't read both servers' logs, so attempts are not limited: let its user read them.",
  ),
  advice(
    ({ settings, pooler }) => Number(pooler.max_client_conn) === settings.POOLER_MAX_CLIENTS,
    'PgBouncer takes another number of clients than POOLER_MAX_CLIENTS says: set max_client_conn as `configuration` prints it.',
  ),
  advice(
    ({ poolerVersion }) => atLeast(poolerVersion, [1, 25, 2]),
    'PgBouncer is older than 1.25.2 and has known holes: upgrade it before strangers can reach it.',
  ),
  advice(
    ({ pooler }) => Number(pooler.server_login_retry) <= LOGIN_RETRY_SECONDS,
    `A clone can hold up its source's clients: set PgBouncer's server_login_retry = ${LOGIN_RETRY_SECONDS}.`,
  ),
  advice(
    ({ pooler }) => Number(pooler.server_idle_timeout) <= SERVER_IDLE_SECONDS,
    `Branches that nobody uses any more can keep every connection: set PgBouncer's server_idle_timeout = ${SERVER_IDLE_SECONDS}.`,
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
    'The data directory is on a file system without reflinks, so every clone copies all bytes: use XFS or Btrfs.',
  ),
];

/** What this host is and what is wrong with it. @throws HostError POOLER_UNAVAILABLE */
export async function examine({ settings, postgres, cloneMethod }: Host) {
  const [{ rows }, { config, version }] = await Promise.all([
    postgres.query<{ name: string; setting: string }>('SELECT name, setting FROM pg_settings'),
    withConsole(settings, async (console) => {
      const config = await console.query<{ key: string; value: string }>('SHOW CONFIG');
      const version = await console.query<{ version: string }>('SHOW VERSION');
      return { config: config.rows, version: version.rows[0]?.version ?? '' };
    }),
  ]);
  const facts: Facts = {
    settings,
    cloneMethod,
    postgres: Object.fromEntries(rows.map(({ name, setting }) => [name, setting])),
    pooler: Object.fromEntries(config.map(({ key, value }) => [key, value])),
    poolerVersion: version.replace(/^PgBouncer /, ''),
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

/** Whether a version such as `1.25.2` is this one or a later one. */
function atLeast(version: string, wanted: readonly number[]): boolean {
  const parts = version.split('.').map((part) => Number.parseInt(part, 10));
  const place = wanted.findIndex((number, index) => (parts[index] ?? 0) !== number);
  return place === -1 || (parts[place] ?? 0) > (wanted[place] ?? 0);
}
