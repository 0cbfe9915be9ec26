import { describe, expect, test } from 'vitest';
import type { Snapshot } from '../snapshot.ts';
import { ofHost, violations } from './invariants.ts';

const PROJECT = '00000000-0000-4000-8000-000000000001';
const HOST = '00000000-0000-4000-8000-000000000002';
const MAIN = '00000000-0000-4000-8000-00000000000a';
const LOGIN = `u_${MAIN.replaceAll('-', '')}`;
const GROUP = `g_${PROJECT.replaceAll('-', '')}`;
const LOGINS = [`${LOGIN}_owner`, `${LOGIN}_rw`, `${LOGIN}_ro`];
const HOSTED = [...LOGINS, `${LOGIN}_query`];
const RULE = `hostssl "db_shop" ${LOGINS.map((login) => `"${login}"`).join(',')} 192.0.2.1/32 scram-sha-256\n`;
const NETWORK = 'hostssl /^db_ +net_1 192.0.2.1/32 scram-sha-256\n';
const MARK = JSON.stringify({ branch_id: MAIN, project_id: PROJECT, job_id: MAIN });

/** One project with `main` and a branch that was deleted, all as it should be. */
function atRest(): Snapshot {
  const job = { status: 'succeeded', project_id: PROJECT, host_id: HOST };
  const platform = ['branchgate', 'postgres', 'template0', 'template1'];
  return {
    records: {
      projects: [
        {
          id: PROJECT,
          status: 'active',
          storage_state: 'ok',
          host_id: HOST,
          access_revision: 1,
          access_applied: 1,
        },
      ],
      branches: [
        { id: MAIN, project_id: PROJECT, database_name: 'db_shop', status: 'active' },
        { id: 'gone', project_id: PROJECT, database_name: 'db_shop_br_gone', status: 'deleted' },
      ],
      jobs: [
        { ...job, id: '1', kind: 'project.create', branch_id: MAIN },
        { ...job, id: '2', kind: 'branch.create', branch_id: 'gone' },
        { ...job, id: '3', kind: 'branch.delete', branch_id: 'gone' },
      ],
      rules: [{ project_id: PROJECT, branch_id: null, cidr: '192.0.2.1/32' }],
      audit: [
        { name: 'project.created', project_id: PROJECT, branch_id: null },
        { name: 'branch.created', project_id: PROJECT, branch_id: 'gone' },
        { name: 'branch.deleted', project_id: PROJECT, branch_id: 'gone' },
      ],
      snapshots: [],
      credentials: ['owner', 'read_write', 'read_only'].map((role) => ({ branch_id: MAIN, role })),
    },
    host: {
      databases: [
        ...platform.map((name, n) => ({ oid: String(n), name, limit: -1, comment: null })),
        { oid: '20000', name: 'db_shop', limit: 60, comment: MARK },
      ],
      roles: [...HOSTED, `${GROUP}_owner`, `${GROUP}_rw`, `${GROUP}_ro`],
      branches: [{ branch_id: MAIN, project_id: PROJECT, job_id: '1', database: 'db_shop' }],
      logins: [...HOSTED],
      projects: [{ project_id: PROJECT, access_revision: 1 }],
      rules: [{ project_id: PROJECT, branch_id: null, cidr: '192.0.2.1/32' }],
      snapshots: [],
      standing: [],
      ofMoves: [],
      members: LOGINS.map((login) => ({ login, role: 'net_1', database: 'db_shop' })),
      directories: ['0', '1', '2', '3', '20000'],
      poolerEntries: [{ name: 'db_shop', paused: false }],
      ruleFiles: {
        postgresHba: NETWORK,
        poolerHba: RULE,
        poolerDatabases: '',
        poolerUsers: LOGINS.map((login) => `"${login}" "SCRAM-SHA-256$…"\n`).join(''),
      },
    },
  };
}

/** What a fault may leave behind, and the first word on it. */
const DAMAGES: Record<string, (picture: Snapshot) => unknown> = {
  'open jobs': ({ records }) =>
    records.jobs.push({
      id: '9',
      kind: 'branch.create',
      status: 'running',
      project_id: PROJECT,
      host_id: HOST,
      branch_id: '9',
    }),
  'records in between': ({ records }) =>
    records.branches.push({
      id: '9',
      project_id: PROJECT,
      database_name: 'db_shop_br_9',
      status: 'creating',
    }),
  databases: ({ host }) => {
    host.databases.push({ oid: '20001', name: 'bgjob_9', limit: 0, comment: null });
    host.directories.push('20001');
  },
  'databases that can be used': ({ host }) => {
    for (const database of host.databases) if (database.name === 'db_shop') database.limit = -1;
  },
  'directories below base/': ({ host }) => host.directories.push('20001'),
  logins: ({ host }) => host.roles.shift(),
  'group roles': ({ host }) => host.roles.push('g_9_owner'),
  'pooler entries': ({ host }) => host.poolerEntries.splice(0, 1, { name: 'db_shop', paused: true }),
  'pooler users': ({ host }) => {
    host.ruleFiles.poolerUsers += '"u_9_rw" "SCRAM-SHA-256$…"\n';
  },
  'rules of the direct port': ({ host }) => {
    host.ruleFiles.postgresHba += NETWORK.replace('192.0.2.1/32', '0.0.0.0/0');
  },
  'rules of the pooled port': ({ host }) => {
    host.ruleFiles.poolerHba = '';
  },
  "branches in the agent's tables": ({ host }) =>
    host.branches.push({ branch_id: '9', project_id: PROJECT, job_id: '9', database: 'db_shop_br_9' }),
  "logins in the agent's tables": ({ host }) => host.logins.pop(),
  'what moves need': ({ host }) => host.ofMoves.push('mv_9'),
  "rules in the agent's tables": ({ host }) =>
    host.rules.push({ project_id: PROJECT, branch_id: '9', cidr: '::/0' }),
  "projects in the agent's tables": ({ host }) => host.projects.push({ project_id: '9', access_revision: 0 }),
  'rules still to be applied': ({ records, host }) => {
    for (const project of [...records.projects, ...host.projects]) project.access_revision = 2;
  },
  'sealed passwords': ({ records }) => records.credentials.push({ branch_id: 'gone', role: 'owner' }),
  'audit events': ({ records }) =>
    records.audit.push({ name: 'branch.created', project_id: PROJECT, branch_id: 'gone' }),
};

test('a service at rest violates nothing', () => {
  expect(violations(atRest())).toEqual([]);
});

test.each(Object.entries(DAMAGES))('%s: damage is seen, and nothing else is blamed', (what, damage) => {
  const picture = atRest();
  damage(picture);
  const found = violations(picture);
  expect(new Set(found.map((text) => text.slice(0, text.indexOf(': '))))).toEqual(new Set([what]));
});

test('a lost audit event is seen', () => {
  const picture = atRest();
  picture.records.audit.shift();
  expect(violations(picture)).toEqual([`audit events: project.created ${PROJECT} is missing`]);
});

describe('a project that has moved to another host', () => {
  const OTHER = '00000000-0000-4000-8000-000000000003';
  /** The former host, which keeps the closed databases. */
  function moved(): Snapshot {
    const picture = atRest();
    const { records, host } = picture;
    for (const project of records.projects) project.host_id = OTHER;
    records.jobs.push({
      id: '4',
      kind: 'project.move',
      status: 'succeeded',
      project_id: PROJECT,
      host_id: HOST,
      branch_id: null,
    });
    Object.assign(host, { members: [], poolerEntries: [] });
    Object.assign(host.ruleFiles, { postgresHba: '', poolerHba: '', poolerUsers: '' });
    return picture;
  }

  test('its former host agrees with the records while it keeps the closed databases', () =>
    expect(violations(ofHost(moved(), HOST))).toEqual([]));

  test('the other host has to admit its clients', () =>
    expect(violations(ofHost(moved(), OTHER))).toContain('pooler entries: db_shop is missing'));

  test('its former host may not admit anybody', () => {
    const { host } = atRest();
    const { records, host: closed } = moved();
    expect(
      violations(ofHost({ records, host: { ...closed, ruleFiles: host.ruleFiles } }, HOST)),
    ).toHaveLength(6);
  });

  test('its former host may not keep what no move has left', () => {
    const { records, host } = moved();
    records.jobs.pop();
    expect(violations(ofHost({ records, host }, HOST))).toContain('databases: db_shop is too much');
  });
});
