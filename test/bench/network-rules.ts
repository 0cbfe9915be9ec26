import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { NetworkMembers } from '../../agent/access/networks.ts';
import { readAccess } from '../../agent/access/store-access.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { RULE_FILES } from '../../agent/servers/configuration.ts';
import { BRANCH_ROLES, loginName } from '../../shared/branch/login.ts';
import { startHost, type TestHost } from '../support/host/host.ts';
import { connect, Project } from '../support/host/host-project.ts';
import type { Report } from './report.ts';
import { medianRatio, runInterleaved, timed } from './rounds.ts';

const PROJECTS = 100;
const BRANCHES = 10;
const RULES = 20;
const ROUNDS = 9;
const LOGINS_A_ROUND = 10;
const HERE = '127.0.0.1/32';
/** Of no login: a branch needs a verifier in the tables. */
const VERIFIER = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';

const METHOD = `One host with ${PROJECTS} projects of ${BRANCHES} branches with three logins each, and ${RULES} networks in each project. \
*Members*: the rules as they are, one line for each network of a project. *Lines*: PostgreSQL's file as it was before, one \
line for each branch and network, which is written and reloaded with every rule. Interleaved in ${ROUNDS} rounds after a first \
one that is discarded. *One more rule*: a project gets a network that it had before, until logins from there are admitted: a \
transaction of grants for the branches whose rules have changed, or the composed and written file and its reload. *One more login*: a client connects over TLS to a \
branch whose lines are in the middle of the file; the mean of ${LOGINS_A_ROUND} in sequence. The databases of the other branches \
do not exist, which neither side looks at. Medians of the ratios in each round are compared.`;

/** Measures the cost of rules as members of roles, against lines of the rule file. @param signal aborts it */
export async function measureNetworkRules(signal: AbortSignal): Promise<Report> {
  const servers = await startHost();
  try {
    signal.throwIfAborted();
    return await measure(servers, signal);
  } finally {
    await servers.stop();
  }
}

async function measure(servers: TestHost, signal: AbortSignal): Promise<Report> {
  const { host, layout } = servers;
  const own = new Project(
    host,
    [HERE, '192.0.2.0/24'].map((cidr) => ({ branch_id: null, cidr })),
  );
  const branch = await own.create('db_n_prod', null);
  const projects = await fill(servers);
  const filled = await timed(() => host.rules.sync());
  const file = join(layout.rulesDir, RULE_FILES.postgresHba);
  const session = await host.sessions.connect();

  const reload = async () => {
    const { rows } = await session.query<{ at: string }>(
      'SELECT clock_timestamp()::text AS at, pg_reload_conf()',
    );
    const isApplied = async () => {
      const result = await session.query<{ done: boolean }>(
        'SELECT pg_conf_load_time() >= $1::timestamptz AS done',
        [rows[0]?.at],
      );
      return result.rows[0]?.done === true;
    };
    if (!(await pollUntil(isApplied, { within: 30_000, every: 1 })))
      throw new Error('the file is not applied');
  };
  /** The file as it was before its rules became members. */
  const writeLines = async () => {
    const access = await readAccess(session);
    const lines = access.flatMap(({ database, verifiers, cidrs }) => {
      const logins = Object.keys(verifiers).map((login) => `"${login}"`);
      return cidrs.map((cidr) => `hostssl "${database}" ${logins.join(',')} ${cidr} scram-sha-256\n`);
    });
    writeFileSync(file, lines.join(''));
    return lines.length;
  };
  const applyLines = async () => {
    await writeLines();
    await reload();
  };
  const applyMembers = async () => {
    await host.rules.sync();
    await reload();
  };
  const members = new NetworkMembers();
  const admit = async () => {
    const branches = await readAccess(session);
    await members.admit(
      session,
      () => ({ branches, blocks: [] }),
      async () => ({ projects: [] }),
    );
  };
  await admit();
  let turn = 0;
  /** Removes a rule, and measures until it is in effect again. */
  const oneMoreRule = async (apply: () => Promise<unknown>) => {
    signal.throwIfAborted();
    const project = projects[turn++ % projects.length];
    const rule = [project, `10.${(turn - 1) % projects.length}.0.0/24`];
    await session.query('DELETE FROM network_rule WHERE project_id = $1 AND cidr = $2', rule);
    await apply();
    await session.query('INSERT INTO network_rule (project_id, cidr) VALUES ($1, $2)', rule);
    return timed(apply);
  };
  const logIn = async () => {
    const ms = await timed(async () => {
      for (let n = 0; n < LOGINS_A_ROUND; n++)
        await (await connect(host, 'direct', branch, 'read_write')).end();
    });
    return ms / LOGINS_A_ROUND;
  };
  try {
    const times = await runInterleaved(ROUNDS, {
      'one more rule, members': () => oneMoreRule(admit),
      'one more rule, lines': () => oneMoreRule(applyLines),
      'one more login, members': () => applyMembers().then(logIn),
      'one more login, lines': () => applyLines().then(logIn),
    });
    const lines = await writeLines();
    const memberships = await session.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM pg_auth_members JOIN pg_roles ON pg_roles.oid = roleid WHERE rolname ~ '^net_'",
    );
    const networks = await session.query<{ count: number }>('SELECT count(*)::int AS count FROM network');
    const ratio = (what: 'rule' | 'login') => ({
      name: `one more ${what}: members ÷ lines`,
      measured: medianRatio(times[`one more ${what}, members`], times[`one more ${what}, lines`]),
      limit: 1,
      unit: '×' as const,
    });
    const { rows } = await session.query<{ server_version: string }>('show server_version');
    return {
      title: 'Network rules as members and as lines',
      method: METHOD,
      setting: {
        PostgreSQL: rows[0]?.server_version ?? '',
        'lines of the file, as members': String(networks.rows[0]?.count),
        'lines of the file, as lines': String(lines),
        members: String(memberships.rows[0]?.count),
        'first sync of all': `${filled.toFixed(0)} ms`,
      },
      goals: [ratio('rule'), ratio('login')],
      times: { 'Until it is in effect': times },
    };
  } finally {
    session.release(true);
  }
}

/** Makes projects, branches and their logins in the agent's tables, without databases. @returns ids of the projects */
async function fill({ host }: TestHost): Promise<string[]> {
  const projects = Array.from({ length: PROJECTS }, () => randomUUID());
  const session = await host.sessions.connect();
  try {
    for (const [p, project] of projects.entries()) {
      await session.query('BEGIN');
      await session.query('INSERT INTO project (project_id, access_revision) VALUES ($1, 1)', [project]);
      await session.query(
        "INSERT INTO network_rule (project_id, cidr) SELECT $1, ('10.' || $2::int || '.' || n || '.0/24')::cidr FROM generate_series(0, $3::int - 1) AS n",
        [project, p, RULES],
      );
      for (let b = 0; b < BRANCHES; b++) {
        const branch = randomUUID();
        // One half sorts before the measured branch.
        const database = `db_${p % 2 === 0 ? 'a' : 'z'}${p}_prod_br_${b}`;
        await session.query(
          'INSERT INTO branch (branch_id, project_id, job_id, database) VALUES ($1, $2, $1, $3)',
          [branch, project, database],
        );
        for (const role of BRANCH_ROLES) {
          const login = loginName(branch, role);
          await session.query(`CREATE ROLE "${login}" LOGIN PASSWORD '${VERIFIER}'`);
          await session.query('INSERT INTO login (login, branch_id, verifier) VALUES ($1, $2, $3)', [
            login,
            branch,
            VERIFIER,
          ]);
        }
      }
      await session.query('COMMIT');
    }
  } finally {
    session.release(true);
  }
  return projects;
}
