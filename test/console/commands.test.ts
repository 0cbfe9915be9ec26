import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';
import { commandsBelow, createProgram, wordsOf } from '../../cli/program.ts';
import { COMMANDS } from '../../console/strings/commands.ts';

const PROJECT = '4c0e2f0a-4f7b-4e0e-9f0a-9a3c1d2e5b60';
const ORIGIN = 'https://gateway.test';
const GITHUB = 'https://token.actions.githubusercontent.com';
const HOSTILE = `it's $(id) "x" \`y\``;

/** The arguments that a shell gives to the command line tool. */
const argumentsOf = (line: string): string[] =>
  execFileSync('sh', ['-c', `branchgate() { printf '%s\\0' "$@"; }\n${line}`], { encoding: 'utf8' })
    .split('\0')
    .slice(0, -1);

/** What the command line tool makes of a line. */
async function understood(line: string) {
  const program = createProgram('1.2.3');
  let found: unknown[] = [];
  for (const command of commandsBelow(program).slice(1))
    command.action(() => {
      found = [wordsOf(command).join(' '), command.args, command.optsWithGlobals()];
    });
  await program.parseAsync(argumentsOf(line), { from: 'user' });
  return found;
}

const key = {
  name: HOSTILE,
  role: 'viewer',
  isReadOnly: true,
  project: '',
  pattern: '',
  cidrs: [],
  days: '30',
};
const trust = {
  issuer: GITHUB,
  audience: ORIGIN,
  claims: { repository: 'acme/shop' },
  role: 'operator',
  branch_pattern: 'pr-*',
};
const other = { ...trust, claims: { repository: 'acme/shop', environment: HOSTILE } };

test.each<[string, string, string[], object]>([
  [
    COMMANDS.createKey(key),
    'key create',
    [HOSTILE],
    { role: 'viewer', readOnly: true, days: 30, allProjects: true },
  ],
  [
    COMMANDS.createKey({
      ...key,
      isReadOnly: false,
      project: PROJECT,
      pattern: 'pr-*',
      cidrs: ['::/0', '10.0.0.0/8'],
    }),
    'key create',
    [HOSTILE],
    { branchPattern: 'pr-*', cidr: ['::/0', '10.0.0.0/8'], project: PROJECT },
  ],
  [
    COMMANDS.branchSettings(HOSTILE, 'pr-7', { search_path: 'app, public', TimeZone: null }),
    'branch update',
    ['pr-7'],
    { setting: { search_path: 'app, public', TimeZone: null }, project: HOSTILE },
  ],
  [COMMANDS.listGrants, 'grant list', [], {}],
  [COMMANDS.revokeGrant('id'), 'grant revoke', ['id'], {}],
  [COMMANDS.revokeKey('k3v7q2xw5mza4d6b'), 'key revoke', ['k3v7q2xw5mza4d6b'], {}],
  [
    COMMANDS.createTrust({ id: PROJECT, name: 'My shop' }, trust, ORIGIN),
    'trust github',
    ['acme/shop'],
    { role: 'operator', branchPattern: 'pr-*', project: 'My shop' },
  ],
  [
    COMMANDS.createTrust(
      { id: PROJECT, name: 'My shop' },
      { ...trust, issuer: 'https://gitlab.com', claims: { project_path: 'acme/shop', ref: 'main' } },
      ORIGIN,
    ),
    'trust gitlab',
    ['acme/shop'],
    { ref: 'main' },
  ],
  [
    COMMANDS.createTrust({ id: PROJECT, name: 'My shop' }, other, ORIGIN),
    'api',
    ['POST', `/api/v1/projects/${PROJECT}/trusts`],
    { data: JSON.stringify(other) },
  ],
  [
    COMMANDS.createBranch({
      project: HOSTILE,
      name: 'pr-7',
      source: 'dev',
      isSnapshot: false,
      at: '',
      data: 'full',
      lifespan: '1m',
      allow: ['me', '::/0'],
    }),
    'branch create',
    ['pr-7'],
    { project: HOSTILE, from: 'dev', allow: ['me', '::/0'], ttl: 2_592_000 },
  ],
  [
    COMMANDS.deleteBranch(HOSTILE, ['pr-7', 'pr-8'], true),
    'branch delete',
    ['pr-7', 'pr-8'],
    { purge: true, project: HOSTILE },
  ],
  [
    COMMANDS.resetBranch(HOSTILE, 'pr-7', 'parent', true),
    'branch reset',
    ['pr-7'],
    { confirm: 'pr-7', project: HOSTILE },
  ],
  [
    COMMANDS.takeSnapshot(PROJECT, 'pr-7', HOSTILE, '86400'),
    'snapshot create',
    ['pr-7'],
    { name: HOSTILE, ttl: 86_400 },
  ],
  [COMMANDS.restoreBranch(PROJECT, 'old', HOSTILE), 'branch restore', ['old'], { name: HOSTILE }],
  [
    COMMANDS.addRule(HOSTILE, '::/0', { branch: 'pr-7', ttl: '8h', via: 'sql' }),
    'rule add',
    ['::/0'],
    { branch: 'pr-7', ttl: 28_800, via: 'sql' },
  ],
  [
    COMMANDS.purgeBranch(PROJECT, 'id'),
    'api',
    ['DELETE', `/api/v1/projects/${PROJECT}/branches/id?purge=true`],
    {},
  ],
  [COMMANDS.removeTrust(PROJECT, 'id'), 'trust remove', ['id'], { project: PROJECT }],
  [
    COMMANDS.copyCsv(PROJECT, 'pr-7', { schema: 'public', name: HOSTILE }, 'create table x ()'),
    'psql',
    [
      'pr-7',
      '-c',
      'create table x ()',
      '-c',
      `\\copy "public"."${HOSTILE}" from 'file.csv' with (format csv, header)`,
    ],
    { project: PROJECT },
  ],
  [COMMANDS.renameBranch(PROJECT, 'pr-7', 'pr-8'), 'branch rename', ['pr-7', 'pr-8'], { project: PROJECT }],
  [COMMANDS.listChanges(PROJECT), 'change list', [], { project: PROJECT }],
  [
    COMMANDS.createChange(PROJECT, 'pr-7', true),
    'change create',
    [],
    { from: 'pr-7', file: 'migration.sql', project: PROJECT },
  ],
  [COMMANDS.actOnChange(PROJECT, 'apply', 'id'), 'change apply', ['id'], { project: PROJECT }],
  [COMMANDS.protectBranch(PROJECT, 'pr-7', true), 'branch protect', ['pr-7'], { project: PROJECT }],
  [COMMANDS.protectBranch(PROJECT, 'pr-7', false), 'branch unprotect', ['pr-7'], { project: PROJECT }],
  [
    COMMANDS.updateProject(PROJECT, {
      name: HOSTILE,
      quota: '0.5',
      attempts: '120',
      spares: 'auto',
      durability: '',
      maskedOnly: '',
      rotation: '',
      approvals: '',
    }),
    'project update',
    [PROJECT],
    { name: HOSTILE, quota: 0.5, connectionAttempts: 120 },
  ],
  [
    COMMANDS.updateProject(PROJECT, {
      name: 'Shop',
      quota: '1',
      attempts: '50',
      spares: '',
      durability: 'sync',
      maskedOnly: 'on',
      rotation: 'all_but_main',
      approvals: '2',
    }),
    'project update',
    [PROJECT],
    { durability: 'sync', maskedOnly: 'on', rotateCredentials: 'all_but_main', changeApprovals: '2' },
  ],
  [
    COMMANDS.scheduleSnapshots(PROJECT, '6h', '7', false),
    'project update',
    [PROJECT],
    { snapshotEvery: '6h', snapshotKeep: 7 },
  ],
  [
    COMMANDS.scheduleSnapshots(PROJECT, '', '7', true),
    'project update',
    [PROJECT],
    { snapshotEvery: 'never' },
  ],
  [
    COMMANDS.rows(
      PROJECT,
      'pr-7',
      { schema: 'shop', name: HOSTILE },
      {
        filters: [
          { column: 'title', operator: 'contains', value: HOSTILE },
          { column: 'note', operator: 'is_null' },
        ],
        order: { column: 'price', direction: 'desc' },
      },
    ),
    'rows',
    [HOSTILE],
    {
      schema: 'shop',
      branch: 'pr-7',
      filter: [
        { column: 'title', operator: 'contains', value: HOSTILE },
        { column: 'note', operator: 'is_null' },
      ],
      order: [{ column: 'price', direction: 'desc' }],
    },
  ],
  [
    COMMANDS.query(PROJECT, 'pr-7', `select '${HOSTILE}'\n`, 'read_write'),
    'query',
    [`select '${HOSTILE}'`],
    { write: true, branch: 'pr-7', project: PROJECT },
  ],
  [
    COMMANDS.query(PROJECT, 'pr-7', '-- a comment', 'read_only'),
    'query',
    ['-- a comment'],
    { branch: 'pr-7' },
  ],
  [
    COMMANDS.audit({ name: 'branch.deleted', actor_type: 'key', actor_id: 'id', project: PROJECT }),
    'audit list',
    [],
    { name: 'branch.deleted', actorType: 'key', actorId: 'id', project: PROJECT },
  ],
])('%s', async (line, command, args, options) => {
  expect(await understood(line)).toEqual([command, args, expect.objectContaining(options)]);
});
