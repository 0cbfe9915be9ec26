import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { closeHost, type Host, openHost } from '../../../agent/host/host.ts';
import { analyzeGrown } from '../../../agent/maintenance/upkeep.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { scramVerifier } from '../../../edge/crypto/scram.ts';
import { ExplainedStatements } from '../../support/host/explained-statements.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { identity, Project } from '../../support/host/host-project.ts';
import { makeNamedBranches } from '../../support/host/many-branches.ts';

/**
 * No statement of an operation reads more rows on a host with many branches, half of which are in the same project.
 * PostgreSQL reports the rows itself (`auto_explain`), with statistics of the time when there were few and with new ones.
 */

const FEW = 20;
const MANY = 200;
/** Statements that poll do not run in every reading, and networks of former rules stay for a while. */
const TOLERANCE = 12;
/** What a statement may read for each further branch of the project, by operation. */
const PER_BRANCH: Record<string, number> = { size: 5 };

/** Rows by statement, for each operation. */
type Reading = Map<string, Map<string, number>>;

let servers: TestHost;
let host: Host;
let project: Project;
let few: Reading;
let stale: Reading;
let analyzed: Reading;

beforeAll(async () => {
  servers = await startHost();
  const explained = await ExplainedStatements.begin(servers);
  host = await openHost(servers.settings);
  project = new Project(host);
  const main = await project.create('db_flat_prod', null);
  const read = () => readOperations(explained, main.database);
  const grow = async (count: number) => {
    for (const projectId of [project.id, randomUUID()])
      await makeNamedBranches(servers, { count: count / 2, projectId });
    // As each of their creations would have.
    await host.rules.sync();
  };
  await grow(FEW);
  await servers.query('ANALYZE');
  await read();
  few = await read();
  await grow(MANY - FEW);
  stale = await read();
  await analyzeGrown(host.postgres);
  analyzed = await read();
});
afterAll(async () => {
  if (host) await closeHost(host);
  await servers?.stop();
});

const OF_PROJECT = { branch_id: null, cidr: '127.0.0.1/32' };

/** Runs each operation of a branch's life. */
async function readOperations(explained: ExplainedStatements, main: string): Promise<Reading> {
  const found: Reading = new Map();
  const branch = project.plan(`db_flat_prod_br_${randomUUID().slice(0, 8)}`);
  const { branch_id, database } = branch;
  const taken = randomUUID();
  const replaced = randomUUID();
  const access = (more: object) =>
    runOperation(host, 'access.apply', {
      project_id: project.id,
      access: { revision: ++project.revision, tenant: project.id, rules: [OF_PROJECT], ...more },
    });
  const snapshot = { project_id: project.id, branch_id, source: database, snapshot_id: taken };
  const reset = { ...identity(branch), job_id: randomUUID() };
  const drop = (snapshot_id: string) =>
    runOperation(host, 'snapshot.drop', { project_id: project.id, snapshot_id });
  const verifier = await scramVerifier('rotated');
  const operations: [string, () => Promise<unknown>][] = [
    ['size', () => runOperation(host, 'project.size', { project_id: project.id })],
    ['prepare', () => project.prepare(branch)],
    ['clone', () => project.clone(branch, main)],
    ['finalize', () => project.finalize(branch)],
    ['prove', () => project.prove(branch)],
    ['a rule', () => access({ rules: [OF_PROJECT, { branch_id, cidr: '192.0.2.1/32' }] })],
    ['a rotation', () => access({ verifiers: { [branch_id]: { read_write: verifier } } })],
    [
      'a snapshot',
      () => runOperation(host, 'snapshot.take', { ...snapshot, busy_wait: 9000, unless_same_as: null }),
    ],
    [
      'clone for a reset',
      () => runOperation(host, 'reset.clone', { ...reset, source: main, busy_wait: 9000 }),
    ],
    ['swap of a reset', () => runOperation(host, 'reset.swap', { ...reset, snapshot_id: replaced })],
    ['drop of a snapshot', () => drop(taken)],
    ['drop', () => project.drop(branch)],
  ];
  for (const [name, run] of operations) found.set(name, await explained.during(run));
  await drop(replaced);
  return found;
}

const OPERATIONS = [
  'size',
  'prepare',
  'clone',
  'finalize',
  'prove',
  'a rule',
  'a rotation',
  'a snapshot',
  'clone for a reset',
  'swap of a reset',
  'drop of a snapshot',
  'drop',
];

test.each(['branch', 'login', 'pg_authid', 'pg_auth_members', 'pg_database'])(
  'the statistics of %s follow its rows',
  async (table) => {
    const [row] = await servers.query<{ known: number; present: number }>(
      `SELECT reltuples AS known, (SELECT count(*)::int FROM ${table}) AS present
       FROM pg_class WHERE oid = '${table}'::regclass`,
    );
    const { known = 0, present = 0 } = row ?? {};
    expect(present).toBeGreaterThan(MANY);
    expect(known).toBeGreaterThan(present / 2);
  },
);

describe.each([
  ['statistics of the time with few', () => stale],
  ['new statistics', () => analyzed],
])(`${MANY} branches instead of ${FEW}, with %s`, (_, many) => {
  test.each(OPERATIONS)('%s reads no more', (name) => {
    const statements = many().get(name) ?? new Map<string, number>();
    expect(statements.size).toBeGreaterThan(0);
    const more = [...statements].flatMap(([text, rows]) => {
      const before = few.get(name)?.get(text) ?? 0;
      const allowed = before + TOLERANCE + ((PER_BRANCH[name] ?? 0) * (MANY - FEW)) / 2;
      return rows > allowed ? [{ text, before, rows }] : [];
    });
    expect(more).toEqual([]);
  });
});
