import { count, eq, sql } from 'drizzle-orm';
import { beforeAll, beforeEach, expect, test } from 'vitest';
import { deleteRule, insertRule, storeRuleChange } from '../../../edge/access/change-rules.ts';
import { newCredentials } from '../../../edge/access/credentials.ts';
import { ofBranch } from '../../../edge/branches/clone-source.ts';
import { reserveBranches } from '../../../edge/branches/create-branches.ts';
import { deleteSnapshot, dropJob } from '../../../edge/branches/drop-snapshots.ts';
import { reserveRestore } from '../../../edge/branches/restore-branch.ts';
import { changeSnapshot, newSnapshot } from '../../../edge/branches/snapshot.ts';
import {
  type Database,
  insertAllIf,
  openDatabase,
  writeThenReadAll,
} from '../../../edge/database/database.ts';
import { type WebhookRow, webhooks } from '../../../edge/database/event-schema.ts';
import {
  type AccountRow,
  type ApiKeyRow,
  accounts,
  apiKeys,
  type InvitationRow,
  invitations,
  projectMembers,
  type TrustRow,
  trusts,
} from '../../../edge/database/people-schema.ts';
import {
  auditEvents,
  type BranchRow,
  branchCredentials,
  hosts,
  jobs,
  type NetworkRuleRow,
  networkRules,
  organizationMembers,
  organizations,
  type ProjectRow,
  projectBranches,
  projects,
  snapshots,
  tenantCaps,
  users,
} from '../../../edge/database/schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { deleteApiKey, insertApiKey } from '../../../edge/machines/api-keys.ts';
import { deleteTrust, insertTrust } from '../../../edge/machines/trusts.ts';
import { shareProject, unshareProject } from '../../../edge/people/project-sharing.ts';
import { changeProject } from '../../../edge/projects/change-project.ts';
import { reserveProject } from '../../../edge/projects/create-project.ts';
import { markProjectDeleting } from '../../../edge/projects/delete-project.ts';
import type { Settings } from '../../../edge/settings.ts';
import { acceptInvitation, createAccount } from '../../../edge/sign-in/accounts.ts';
import { openSession } from '../../../edge/sign-in/sessions.ts';
import type { ProjectView } from '../../../edge/tenancy/project-access.ts';
import { changeCaps, changeTenantCaps } from '../../../edge/tenancy/tenant-caps.ts';
import { createWebhook, deleteWebhook, viewSecret } from '../../../edge/webhooks/webhook.ts';
import type { FailureCode } from '../../../shared/failures.ts';
import { NETWORK_RULES_MAX } from '../../../shared/limits.ts';
import type { Result } from '../../../shared/result.ts';
import { ACTOR, branchRow, overtaken, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-23T12:00:00Z');
const LATER = new Date(NOW.getTime() + 60_000);
const KEYS = [{ id: '1', bytes: new Uint8Array(32) }];
const SETTINGS = {
  BASE_URL: 'http://127.0.0.1',
  CREDENTIAL_KEYS: KEYS,
  JWT_KEYS: KEYS,
  JWT_ACCESS_TTL_SECONDS: 900,
  JWT_REFRESH_TTL_SECONDS: 900,
  SERVICE_NAME: 'branchgate',
  LEASED_BRANCH_LIMIT: 1,
  BRANCH_LIMIT_MAX: 20,
  TENANT_PROJECT_LIMIT: 10,
  TENANT_QUOTA_LIMIT_GIB: 20,
  SELF_SIGNUP_PROJECT_LIMIT: 10,
  SELF_SIGNUP_QUOTA_LIMIT_GIB: 20,
  STORAGE_OVERCOMMIT: 1,
} as unknown as Settings;
const CLIENT = { ip: null, userAgent: null, requestId: 'r' };
const PLACE = { projectId: 'p', hostId: 'h', actor: ACTOR };
const LIFE = { lifespan: '7d', ttlSeconds: 604_800 } as const;

const { binding, db } = await startRecords();

const id = () => crypto.randomUUID();
const setProject = (values: object) => db.update(projects).set(values).where(eq(projects.id, 'p'));

let project: ProjectRow;
let branch: BranchRow;
let gone: BranchRow;
let kept: typeof snapshots.$inferSelect;
let taken: typeof snapshots.$inferSelect;
const account = (email: string): AccountRow => ({
  id: id(),
  tenantId: 't',
  email,
  name: 'Ada',
  passwordHash: 'x',
  role: 'owner',
  version: 0,
  createdAt: NOW,
  updatedAt: NOW,
});
let ada: AccountRow;
let hook: string;
const rule = (cidr: string, branchId: string | null = null): NetworkRuleRow => ({
  id: id(),
  projectId: 'p',
  branchId,
  cidr,
  description: null,
  source: 'manual',
  via: 'all' as const,
  revision: 0,
  createdBy: 'u',
  tenantId: 't',
  createdAt: NOW,
  expiresAt: null,
  listVersion: 0,
});
const key = (): ApiKeyRow => ({
  id: id(),
  tenantId: 't',
  name: 'CI',
  role: 'operator',
  scopes: ['read'],
  permissions: [],
  projectId: 'p',
  branchPattern: null,
  cidrs: null,
  secretHash: 'x',
  expiresAt: LATER,
  lastUsedAt: null,
  createdBy: 'u',
  createdAt: NOW,
});
const trust = (): TrustRow => ({
  id: id(),
  projectId: 'p',
  issuer: 'https://i',
  audience: 'a',
  claims: {},
  role: 'operator',
  branchPattern: null,
  lastUsedAt: null,
  createdBy: 'u',
  createdAt: NOW,
});
const webhook = (): WebhookRow => ({
  id: id(),
  tenantId: 't',
  url: 'https://w',
  events: ['storage.changed'],
  projectId: null,
  keyId: '1',
  sealedSecret: 'x',
  disabledAt: null,
  createdBy: 'u',
  createdAt: NOW,
});
const invitation = (email: string): InvitationRow => ({
  id: id(),
  tenantId: 't',
  email,
  role: 'viewer',
  invitedBy: 'u',
  expiresAt: LATER,
  createdAt: NOW,
});

const STORED = {
  rule: rule('192.0.2.1/32'),
  key: key(),
  trust: trust(),
  invitation: invitation('grace@example.com'),
};

const EMPTIED = [
  ...[auditEvents, jobs, snapshots, projectBranches, networkRules, apiKeys, trusts, webhooks],
  ...[invitations, accounts, projectMembers, tenantCaps],
];
const asBefore = {
  status: 'active',
  tenantId: 't',
  branchLimit: 10,
  storageQuotaGib: 1,
  storageQuotaCapGib: 5,
} as const;

/** Sealed with the key, once for all tests. */
let hookRow: WebhookRow;
beforeAll(async () => {
  const made = await WRITES['a new webhook'](db);
  if (!made.ok) throw new Error(made.failure.code);
  hookRow = made.value.webhook;
  hook = hookRow.id;
});

beforeEach(async () => {
  const active = branchRow('active');
  const deleted = branchRow('deleted');
  ada = account('ada@example.com');
  const [[row], branches] = await writeThenReadAll(
    db,
    [
      ...EMPTIED.map((table) => db.delete(table)),
      db.delete(projects).where(eq(projects.appKey, 'other')),
      setProject(asBefore),
      db.update(users).set({ tenantId: 't' }),
      db.update(hosts).set({ freeBytes: null, capacity: null }),
      db.insert(organizations).values({ id: 'o', idpTenantId: 't', createdAt: NOW }).onConflictDoNothing(),
      db
        .insert(organizationMembers)
        .values({ organizationId: 'o', userId: 'u', role: 'operator', createdAt: NOW })
        .onConflictDoNothing(),
      db.insert(projectBranches).values(active),
      db.insert(projectBranches).values(deleted),
      db.insert(networkRules).values(STORED.rule),
      db.insert(apiKeys).values(STORED.key),
      db.insert(trusts).values(STORED.trust),
      db.insert(invitations).values(STORED.invitation),
      db.insert(accounts).values(ada),
      db.insert(webhooks).values(hookRow),
    ],
    [db.select().from(projects).where(eq(projects.id, 'p')), db.select().from(projectBranches)],
  );
  const branchOf = (branchId: string) => branches.find((found) => found.id === branchId);
  const live = branchOf(active.id);
  const dead = branchOf(deleted.id);
  if (!row || !live || !dead) throw new Error('no records');
  project = { ...row, ...asBefore };
  [branch, gone] = [live, dead];
  const about = { id: id(), kind: 'deleted', branch: gone, expiresAt: LATER } as const;
  kept = { ...newSnapshot(about, NOW), status: 'ready', rules: [] } as typeof kept;
  taken = { ...kept, id: id(), kind: 'manual' };
  await db.insert(snapshots).values([kept, taken]);
});

const principal = { ...ACTOR, issuer: 'i', gid: 'g', role: 'owner', scopes: [], service: 'branchgate' };
const people = (d1: Database) =>
  ({ db: d1, settings: SETTINGS, principal, client: CLIENT, now: NOW }) as unknown as Parameters<
    typeof shareProject
  >[0];
const invited = { invitationId: STORED.invitation.id, email: STORED.invitation.email };
const person = { name: 'Grace', passwordHash: 'x' };
const newProject = (d1: Database) =>
  reserveProject(
    d1,
    SETTINGS,
    {
      projectId: id(),
      jobId: id(),
      mainBranchId: id(),
      name: 'Other',
      requestedAppKey: 'other',
      env: 'prod',
      hostId: 'h',
      storageQuotaGib: 0.25,
      extensions: [],
      actor: ACTOR,
      keyUse: null,
    } as unknown as Parameters<typeof reserveProject>[2],
    NOW,
  );
const change = (d1: Database, values: Parameters<typeof changeProject>[3]) =>
  changeProject(d1, SETTINGS, project as unknown as ProjectView, values, ACTOR);

/** Each as a request that has read its records before. The branch's own writes are in `branches/`. */
const WRITES = {
  'a new branch': (d1) => {
    const choices = { life: LIFE, leaseSeconds: null, labels: {}, allow: ['192.0.2.7/32'] };
    const names = { jobId: id(), isBatch: false, branches: [{ id: id(), name: 'new' }] };
    const request = { ...names, project, source: ofBranch(branch), creatorCidr: null, onExists: 'fail' };
    const whole = { ...choices, ...request, actor: ACTOR, keyUse: null };
    return reserveBranches(d1, SETTINGS, whole as unknown as Parameters<typeof reserveBranches>[2], NOW);
  },
  'a restoration': (d1) => {
    const about = { jobId: id(), project, branch: gone, actor: ACTOR, keyUse: null };
    const rules = [{ cidr: '192.0.2.8/32', description: null, source: 'manual' as const }];
    return reserveRestore(d1, SETTINGS, { ...about, snapshot: { ...kept, rules }, branchName: 'back' }, NOW);
  },
  'a purge': (d1) => {
    const about = { jobId: id(), hostId: 'h', actor: ACTOR, createdBy: 'u' };
    return deleteSnapshot(d1, kept, dropJob(kept, about, NOW), NOW);
  },
  'a number of spares': (d1) => changeSnapshot(d1, { snapshot: taken, spares: 4, actor: ACTOR }, NOW),
  'a new project': newProject,
  'a new quota': (d1) => change(d1, { storage_quota_gib: 3 }),
  'a new name': (d1) => change(d1, { name: 'N' }),
  'new passwords of unmasked branches': (d1) => change(d1, { masked_only: true, rotate_credentials: 'all' }),
  'a deletion of the project': (d1) => {
    const job = newJob('project.delete', { branchId: null }, { id: id(), ...PLACE }, NOW);
    return markProjectDeleting(d1, job, NOW);
  },
  'a new rule': (d1) => insertRule(d1, rule('192.0.2.2/32'), ACTOR, null),
  'a new rule of a branch': (d1) => insertRule(d1, rule('192.0.2.3/32', branch.id), ACTOR, null),
  'the end of a rule': (d1) =>
    storeRuleChange({ expiresAt: LATER })(d1, { projectId: 'p', ruleId: STORED.rule.id }, ACTOR, NOW),
  'a deletion of a rule': (d1) => deleteRule(d1, { projectId: 'p', ruleId: STORED.rule.id }, ACTOR, NOW),
  'a new key': (d1) => insertApiKey(d1, key(), ACTOR, null, { status: 201, body: {} }),
  'a deletion of a key': (d1) => deleteApiKey(d1, STORED.key.id, ACTOR, NOW),
  'a new trust': (d1) => insertTrust(d1, trust(), ACTOR, null),
  'a deletion of a trust': (d1) => deleteTrust(d1, 'p', STORED.trust.id, ACTOR, NOW),
  'caps of a tenant': (d1) => changeTenantCaps(d1, SETTINGS, 't', { project_limit: 3 }, CLIENT),
  'caps of a project': (d1) => changeCaps(d1, SETTINGS, 'p', { branch_limit: 3 }, CLIENT),
  'a new webhook': (d1) =>
    createWebhook(
      d1,
      KEYS,
      { url: 'https://w', events: ['storage.changed'], projectId: null, keyUse: null },
      ACTOR,
      NOW,
    ),
  'a view of a secret': (d1) => viewSecret(d1, KEYS, hook, ACTOR, NOW),
  'a deletion of a webhook': (d1) => deleteWebhook(d1, hook, ACTOR, NOW),
  'a new account': (d1) =>
    createAccount(d1, { accountId: id(), tenantId: 't2', email: 'new@example.com', ...person }, CLIENT, NOW),
  'an accepted invitation': (d1) => acceptInvitation(d1, { ...invited, ...person }, CLIENT, NOW),
  'a session': (d1) => openSession(d1, SETTINGS, ada, CLIENT, NOW),
  'a shared project': (d1) => shareProject(people(d1), { projectId: 'p', userId: 'u', role: 'viewer' }),
  'the end of sharing': async (d1) => {
    await db.insert(projectMembers).values({ projectId: 'p', userId: 'u', role: 'viewer', createdAt: NOW });
    return unshareProject(people(d1), { projectId: 'p', userId: 'u' });
  },
} as const satisfies Record<string, (d1: Database) => Promise<Result<unknown>>>;
type Write = keyof typeof WRITES;

const many = <T>(count: number, one: (index: number) => T) => Array.from({ length: count }, (_, i) => one(i));
const move = () => setProject({ tenantId: 'other' });
const copy = (row: BranchRow, values: Partial<BranchRow>) => ({ ...row, id: id(), ...values });
const named = (branchName: string, values: Partial<BranchRow> = {}) =>
  db
    .insert(projectBranches)
    .values(copy(branch, { branchName, databaseName: `db_${branchName}`, ...values }));
const fillSlots = () => {
  const one = (n: number) => copy(branch, { status: 'expired', branchName: `e${n}`, databaseName: `e${n}` });
  return insertAllIf(db, projectBranches, many(10, one), sql`true`);
};
const fillRules = () =>
  insertAllIf(
    db,
    networkRules,
    many(NETWORK_RULES_MAX, (n) => rule(`10.0.${n >> 8}.${n & 255}/32`)),
    sql`true`,
  );

/** A branch with unmasked data and passwords. */
const unmasked = async (status: BranchRow['status']) => {
  const row = copy(branch, { branchName: 'fresh', databaseName: 'db_fresh', status });
  await db.insert(projectBranches).values(row);
  await db.insert(branchCredentials).values(await newCredentials(KEYS, row.id, NOW));
};

const FILLED = ['a new branch', 'a restoration'] as const;

/** What another request does in between, the writes that it concerns, and their failure. */
const CHANGES: [string, readonly Write[], FailureCode, () => Promise<unknown>][] = [
  [
    'the project moves to another tenant',
    [
      ...[...FILLED, 'a new quota', 'a new name', 'a deletion of the project', 'a new rule', 'a new key'],
      ...['a new trust', 'a deletion of a trust', 'a shared project', 'a number of spares'],
    ] as Write[],
    'NOT_FOUND',
    move,
  ],
  [
    'the project is being deleted',
    [...FILLED, 'a new quota', 'a new name', 'a deletion of the project', 'a new rule', 'a number of spares'],
    'PROJECT_NOT_ACTIVE',
    () => setProject({ status: 'deleting' }),
  ],
  [
    'an unmasked branch is being created',
    ['new passwords of unmasked branches'],
    'HOST_BUSY',
    () => unmasked('creating'),
  ],
  [
    'an unmasked branch was created',
    ['new passwords of unmasked branches'],
    'HOST_BUSY',
    () => unmasked('active'),
  ],
  ['the limit of branches is lower', FILLED, 'BRANCH_LIMIT_REACHED', () => setProject({ branchLimit: 0 })],
  ['expired branches take all slots', FILLED, 'BRANCH_LIMIT_REACHED', async () => fillSlots()],
  ['all rules are there', [...FILLED, 'a new rule'], 'RULE_LIMIT_REACHED', async () => fillRules()],
  ['the name is taken', ['a new branch'], 'BRANCH_EXISTS', () => named('new')],
  ['the name is taken', ['a restoration'], 'BRANCH_EXISTS', () => named('back')],
  [
    'the source expires',
    ['a new branch'],
    'SOURCE_NOT_ACTIVE',
    () => db.update(projectBranches).set({ status: 'expired' }).where(eq(projectBranches.id, branch.id)),
  ],
  [
    'the branch is back',
    ['a restoration'],
    'NOT_FOUND',
    () => db.update(projectBranches).set({ status: 'active' }).where(eq(projectBranches.id, gone.id)),
  ],
  ['the database is purged', ['a restoration', 'a purge'], 'NOT_FOUND', () => db.delete(snapshots)],
  ['the snapshot is deleted', ['a number of spares'], 'NOT_FOUND', () => db.delete(snapshots)],
  ['a restoration runs', ['a purge'], 'NOT_FOUND', () => WRITES['a restoration'](db)],
  [
    'its deletion is tried again',
    ['a restoration'],
    'HOST_BUSY',
    () => {
      const job = newJob('branch.delete', { branchId: gone.id }, { id: id(), ...PLACE }, NOW);
      return db.insert(jobs).values(job);
    },
  ],
  ['the user moves', ['a new project'], 'UNAUTHENTICATED', () => db.update(users).set({ tenantId: 'x' })],
  [
    'the user moves',
    ['a new key', 'a shared project'],
    'NOT_FOUND',
    () => db.update(users).set({ tenantId: 'x' }),
  ],
  ['the same project is made', ['a new project'], 'PROJECT_EXISTS', () => newProject(db)],
  [
    'the limit of projects is lower',
    ['a new project'],
    'PROJECT_LIMIT_REACHED',
    () =>
      db
        .insert(tenantCaps)
        .values({ tenantId: 't', projectLimit: 1, storageQuotaLimitGib: null, updatedAt: NOW }),
  ],
  [
    'the limit of quotas is lower',
    ['a new project', 'a new quota'],
    'TENANT_QUOTA_REACHED',
    () =>
      db
        .insert(tenantCaps)
        .values({ tenantId: 't', projectLimit: null, storageQuotaLimitGib: 1, updatedAt: NOW }),
  ],
  [
    'the disk fills up',
    ['a new project', 'a new quota'],
    'HOST_FULL',
    () => db.update(hosts).set({ freeBytes: 1 }),
  ],
  ['the host gets no more', ['a new project'], 'HOST_FULL', () => db.update(hosts).set({ capacity: 0 })],
  [
    'its cap is lower',
    ['a new quota'],
    'QUOTA_ABOVE_SELF_SERVICE_CAP',
    () => setProject({ storageQuotaCapGib: 2 }),
  ],
  [
    'the branch is deleted',
    ['a new rule of a branch'],
    'NOT_FOUND',
    () => db.update(projectBranches).set({ status: 'deleted' }).where(eq(projectBranches.id, branch.id)),
  ],
  ['the same rule is made', ['a new rule'], 'RULE_EXISTS', () => WRITES['a new rule'](db)],
  [
    'it is deleted',
    ['the end of a rule', 'a deletion of a rule'],
    'NOT_FOUND',
    () => db.delete(networkRules),
  ],
  ['it is deleted', ['a deletion of a key'], 'NOT_FOUND', () => db.delete(apiKeys)],
  ['it is deleted', ['a deletion of a trust'], 'NOT_FOUND', () => db.delete(trusts)],
  [
    'it is deleted',
    ['a view of a secret', 'a deletion of a webhook'],
    'NOT_FOUND',
    () => db.delete(webhooks),
  ],
  [
    'all keys are there',
    ['a new key'],
    'API_KEY_LIMIT_REACHED',
    async () =>
      insertAllIf(
        db,
        apiKeys,
        many(99, () => key()),
        sql`true`,
      ),
  ],
  [
    'all trusts are there',
    ['a new trust'],
    'TRUST_LIMIT_REACHED',
    async () => insertAllIf(db, trusts, many(19, trust), sql`true`),
  ],
  [
    'all webhooks are there',
    ['a new webhook'],
    'WEBHOOK_LIMIT_REACHED',
    async () => insertAllIf(db, webhooks, many(19, webhook), sql`true`),
  ],
  ['the tenant ends', ['caps of a tenant'], 'NOT_FOUND', () => db.delete(organizations)],
  [
    'the address gets an account',
    ['a new account'],
    'ACCOUNT_EXISTS',
    () => db.insert(accounts).values(account('new@example.com')),
  ],
  [
    'the address gets an account',
    ['an accepted invitation'],
    'ACCOUNT_EXISTS',
    () => db.insert(accounts).values(account(invited.email)),
  ],
  ['it is revoked', ['an accepted invitation'], 'CODE_WRONG', () => db.delete(invitations)],
  ['the password changes', ['a session'], 'UNAUTHENTICATED', () => db.update(accounts).set({ version: 1 })],
  ['it is no longer shared', ['the end of sharing'], 'NOT_FOUND', () => db.delete(projectMembers)],
];

const CELLS = CHANGES.flatMap(([what, writes, code, meanwhile]) =>
  writes.map((write) => [write, what, code, meanwhile] as const),
);

const TABLES = [auditEvents, jobs, projectBranches, networkRules, apiKeys, trusts, webhooks, accounts];
const counts = async () => {
  const counted = TABLES.map((table) => db.select({ rows: count() }).from(table));
  const [first, ...others] = counted;
  if (!first) throw new Error('no table');
  return (await db.batch([first, ...others])).map(([found]) => found?.rows);
};

test.each(CELLS)('%s, and %s meanwhile: %s, and nothing is written', async (write, _, code, meanwhile) => {
  let before: unknown[] = [];
  const late = overtaken(binding, async () => {
    await meanwhile();
    before = await counts();
  });
  expect(await WRITES[write](openDatabase(late))).toMatchObject({ ok: false, failure: { code } });
  expect(before).not.toEqual([]);
  expect(await counts()).toEqual(before);
});

const ALL = Object.keys(WRITES) as Write[];

/** The statements that decide, with their values, as D1 gets them. */
async function decisionsOf(write: Write): Promise<{ text: string; values: unknown[] }[]> {
  const sent: { text: string; values: unknown[] }[] = [];
  const listening = new Proxy(binding, {
    get(target, property) {
      const value: unknown = Reflect.get(target, property);
      if (typeof value !== 'function') return value;
      if (property !== 'prepare') return value.bind(target);
      return (text: string) => {
        const statement = target.prepare(text);
        const bind = statement.bind.bind(statement);
        statement.bind = (...values: unknown[]) => {
          sent.push({ text, values });
          return bind(...values);
        };
        return statement;
      };
    },
  });
  expect(await WRITES[write](openDatabase(listening))).toMatchObject({ ok: true });
  return sent.filter(({ text }) => text.startsWith('select case'));
}

/** One row without a table, the values of a request, and the open jobs, which have an index of their own. */
const SMALL = /^SCAN (?:CONSTANT ROW|\(subquery-\d+\)|json_each|jobs USING INDEX jobs_open)/;

test.each(ALL)(
  '%s is written if nothing changes meanwhile, and its decision reads no table as a whole',
  async (write) => {
    const decisions = await decisionsOf(write);
    expect(decisions).not.toEqual([]);
    for (const { text, values } of decisions) {
      const { results } = await binding
        .prepare(`explain query plan ${text}`)
        .bind(...values)
        .all<{ detail: string }>();
      const scans = results.map(({ detail }) => detail).filter((detail) => detail.startsWith('SCAN'));
      expect(scans.filter((detail) => !SMALL.test(detail))).toEqual([]);
    }
  },
);

/** What is left for one of two requests, and the failure of the other. */
const LAST: [Write, FailureCode, () => Promise<unknown>][] = [
  ['a new branch', 'BRANCH_LIMIT_REACHED', () => setProject({ branchLimit: 2 })],
  ['a restoration', 'NOT_FOUND', async () => {}],
  ['a purge', 'NOT_FOUND', async () => {}],
  ['a new project', 'PROJECT_EXISTS', async () => {}],
  ['a deletion of the project', 'PROJECT_NOT_ACTIVE', async () => {}],
  ['a new rule', 'RULE_EXISTS', async () => {}],
  ['a deletion of a rule', 'NOT_FOUND', async () => {}],
  [
    'a new key',
    'API_KEY_LIMIT_REACHED',
    async () =>
      insertAllIf(
        db,
        apiKeys,
        many(98, () => key()),
        sql`true`,
      ),
  ],
  ['a new trust', 'TRUST_LIMIT_REACHED', async () => insertAllIf(db, trusts, many(18, trust), sql`true`)],
  [
    'a new webhook',
    'WEBHOOK_LIMIT_REACHED',
    async () => insertAllIf(db, webhooks, many(18, webhook), sql`true`),
  ],
  ['a new account', 'ACCOUNT_EXISTS', async () => {}],
];

test.each(LAST)('%s: of two simultaneous requests one is refused with %s', async (write, code, leaveOne) => {
  await leaveOne();
  const results = await Promise.all([WRITES[write](db), WRITES[write](db)]);
  expect(results.filter(({ ok }) => ok)).toHaveLength(1);
  expect(results.flatMap((result) => (result.ok ? [] : [result.failure.code]))).toEqual([code]);
});

test('every write that a request can be overtaken in is in the table', () => {
  const without = ['caps of a project'];
  const covered = new Set(CHANGES.flatMap(([, writes]) => writes));
  expect(ALL.filter((write) => !covered.has(write))).toEqual(without);
});
