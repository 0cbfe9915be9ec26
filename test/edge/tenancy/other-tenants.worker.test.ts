import { timingSafeEqual } from 'node:crypto';
import { and, eq, ne, type SQL, sql } from 'drizzle-orm';
import { afterAll, describe, expect, test, vi } from 'vitest';
import {
  deleteRule,
  expireRules,
  insertRule,
  nextRuleEnd,
  storeRuleChange,
} from '../../../edge/access/change-rules.ts';
import { rulesOfBranches } from '../../../edge/access/network-rule.ts';
import { accessReads } from '../../../edge/access/send-access.ts';
import { signOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { nextEnd } from '../../../edge/branches/branch-ends.ts';
import {
  branchesOf,
  referencedBranch,
  restorableBranchesOf,
} from '../../../edge/branches/branch-reference.ts';
import { ofBranch, sourceQueries } from '../../../edge/branches/clone-source.ts';
import { compareBranchJob, reserveComparison } from '../../../edge/branches/comparison.ts';
import { existingBranch, reserveBranches } from '../../../edge/branches/create-branches.ts';
import { retireBranches } from '../../../edge/branches/delete-branch.ts';
import {
  deleteSnapshot,
  dropJob,
  forgetSnapshots,
  nextExpiry,
  retireSnapshots,
} from '../../../edge/branches/drop-snapshots.ts';
import { expireBranches } from '../../../edge/branches/expiry.ts';
import { keptBranch } from '../../../edge/branches/kept-branch.ts';
import { cloneableSnapshot, latestSnapshot, snapshotsOf } from '../../../edge/branches/snapshot.ts';
import { reserveSnapshot, takeScheduledSnapshot } from '../../../edge/branches/take-snapshot.ts';
import { readyMasked } from '../../../edge/branches/trial.ts';
import { applyChangeJob } from '../../../edge/changes/apply.ts';
import { approve, countedApprovals, hasApprovals } from '../../../edge/changes/approvals.ts';
import { applyDueChanges, nextDueChange } from '../../../edge/changes/due.ts';
import {
  closeChange,
  createChange,
  reserveApplication,
  reserveRehearsal,
  schedule,
} from '../../../edge/changes/reserve.ts';
import { undoOf } from '../../../edge/changes/undo.ts';
import { sha256 } from '../../../edge/crypto/encoding.ts';
import { sealPassword } from '../../../edge/crypto/scram.ts';
import { changes } from '../../../edge/database/change-schema.ts';
import { identityProviders, providerPeople, signInPolicies } from '../../../edge/database/company-schema.ts';
import { isUnrenamed } from '../../../edge/database/conditions.ts';
import { type Database, inOneBatch, insertAllIf, openDatabase } from '../../../edge/database/database.ts';
import { eventOutbox, webhooks } from '../../../edge/database/event-schema.ts';
import { maskingPolicies } from '../../../edge/database/masking-schema.ts';
import { moves } from '../../../edge/database/move-schema.ts';
import { oauthGrants } from '../../../edge/database/oauth-schema.ts';
import { accounts, projectMembers } from '../../../edge/database/people-schema.ts';
import {
  auditEvents,
  branchCredentials,
  hosts,
  idempotencyKeys,
  jobs,
  networkRules,
  organizationMembers,
  projectBranches,
  projects,
  snapshots,
  tenantCaps,
  users,
} from '../../../edge/database/schema.ts';
import { follows } from '../../../edge/database/source-schema.ts';
import { EventFeed } from '../../../edge/events/event-log.ts';
import { recordedUses } from '../../../edge/idempotency/idempotency-key.ts';
import { providerOfAddress, verifyDomain } from '../../../edge/identity-providers/domains.ts';
import { admitPerson, endPeople, renewClaims, updateRoles } from '../../../edge/identity-providers/people.ts';
import {
  changeProvider,
  createProvider,
  deleteProvider,
  providerOf,
} from '../../../edge/identity-providers/provider.ts';
import { isOpenOf } from '../../../edge/jobs/cancel-job.ts';
import { newJob, openJobs } from '../../../edge/jobs/job-store.ts';
import { deleteApiKey } from '../../../edge/machines/api-keys.ts';
import { machineRecord } from '../../../edge/machines/authenticate-machine.ts';
import { recordIssue } from '../../../edge/machines/token-exchange.ts';
import { deleteTrust } from '../../../edge/machines/trusts.ts';
import { previewKey, replacingKey } from '../../../edge/masking/policy.ts';
import { BlockRecorder } from '../../../edge/monitoring/blocks.ts';
import { storeDiskBytes } from '../../../edge/monitoring/disk-bytes.ts';
import { drillsOf, mailAboutDrills, recordDrill } from '../../../edge/monitoring/recovery-drills.ts';
import { readSubject, StorageQuota } from '../../../edge/monitoring/storage-quota.ts';
import { movingBranches, reserveMove } from '../../../edge/moves/reserve.ts';
import { switchHost } from '../../../edge/moves/switch.ts';
import { exchangeCode, refreshGrant, revokeByToken } from '../../../edge/oauth/grant-tokens.ts';
import { endGrant, grantsOf, insertGrant, revokeGrant } from '../../../edge/oauth/grants.ts';
import { shareProject, unshareProject } from '../../../edge/people/project-sharing.ts';
import { createTenant } from '../../../edge/people/tenants.ts';
import { changeProject } from '../../../edge/projects/change-project.ts';
import { createProjectJob } from '../../../edge/projects/create-project.ts';
import { markProjectDeleting } from '../../../edge/projects/delete-project.ts';
import { readRecords } from '../../../edge/reconciliation/differences.ts';
import { versionsOf } from '../../../edge/routes/rehearsals.ts';
import type { Settings } from '../../../edge/settings.ts';
import { confirmSession } from '../../../edge/sign-in/company-session.ts';
import { openSession, renewSession } from '../../../edge/sign-in/sessions.ts';
import {
  changePolicy,
  readPolicy,
  recoverOwner,
  replaceOwnerCode,
} from '../../../edge/sign-in/sign-in-policy.ts';
import { cutOverJob, stopFollowing, stopFollowingJob } from '../../../edge/sources/end.ts';
import { followOf, isFollowing, recordObservation, recordResumed } from '../../../edge/sources/record.ts';
import { reserveStart } from '../../../edge/sources/start.ts';
import { readTarget } from '../../../edge/sql/admit-client.ts';
import { isOwn, projectViews } from '../../../edge/tenancy/project-access.ts';
import { changeTenantCaps } from '../../../edge/tenancy/tenant-caps.ts';
import { currentAccountRole, materialize } from '../../../edge/tenancy/users.ts';
import { NETWORK_RULES_MAX } from '../../../shared/limits.ts';
import { RANGES_OF_LIST } from '../../../shared/named-networks.ts';
import { ACTOR, overtaken, ruleRow, startRecords } from '../../support/records/records.ts';
import { at, ID, insertTenant, NOW } from '../../support/records/tenant.ts';
import {
  isOfTwin,
  readAll,
  replaceAll,
  type StoredRow,
  type Twin,
  twinOf,
  twinRows,
} from '../../support/records/twins.ts';
import { SETTINGS as ENVIRONMENT } from '../../support/worker/worker.ts';

/**
 * Each function is called for one project or tenant twice: without anybody else, and next to twins that have the same of
 * everything. The result and what is written must be the same, and nothing of a twin may change.
 */

const KEYS = [{ id: '1', bytes: new Uint8Array(32) }];
const SETTINGS = {
  BASE_URL: 'http://127.0.0.1',
  GITHUB_URL: 'https://github.example',
  CREDENTIAL_KEYS: KEYS,
  JWT_KEYS: KEYS,
  JWT_ACCESS_TTL_SECONDS: 900,
  JWT_REFRESH_TTL_SECONDS: 900,
  SSO_SESSION_MAX_SECONDS: 900,
  EXPIRED_RETENTION_SECONDS: 600,
  SERVICE_NAME: 'branchgate',
  MAIL_API_URL: 'https://mail.example',
  SNAPSHOT_LIMIT: 3,
  LEASED_BRANCH_LIMIT: 0,
  BRANCH_LIMIT_MAX: 20,
  TENANT_PROJECT_LIMIT: 10,
  TENANT_QUOTA_LIMIT_GIB: 20,
  SELF_SIGNUP_PROJECT_LIMIT: 10,
  SELF_SIGNUP_QUOTA_LIMIT_GIB: 20,
  STORAGE_OVERCOMMIT: 1,
} as unknown as Settings;
const DRILL = {
  project_id: 'p',
  drill_id: ID.manual,
  drilled_at: NOW.toISOString(),
  at: NOW.toISOString(),
  duration_ms: 1,
  tables: 1,
  rows: 1,
  problem: null,
};
const CLIENT = { ip: null, userAgent: null, requestId: 'r' };

// Node.js has it elsewhere than workerd.
Object.assign(crypto.subtle, { timingSafeEqual });
vi.useFakeTimers({ toFake: ['Date'], now: NOW });
afterAll(() => vi.useRealTimers());

const { binding, db } = await startRecords();
await insertTenant(db);
const OURS = (await readAll(binding)).filter(({ table }) => table !== 'event_outbox');
const others = (twin: Twin) => twinRows(OURS, twin);
const WORLD = {
  alone: OURS,
  besideTenants: [...others('earlier'), ...OURS, ...others('later')],
  besideAll: [...others('earlier'), ...others('sibling'), ...OURS, ...others('later')],
};

const KNOWN = new Set(Object.values(ID) as string[]);
/** Text without what is random. */
const comparable = (value: unknown): unknown =>
  JSON.parse(
    JSON.stringify(value ?? null)
      .replaceAll(/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{21}/g, (id) =>
        KNOWN.has(id) || isOfTwin({ table: id, columns: {} }) ? id : 'new',
      )
      .replaceAll(
        /"((?:sealed|recovery|access|refresh)\w*|verification|hash|code_?hash)":"[^"]*"/gi,
        '"$1":"random"',
      )
      .replaceAll(/"code":"[\w-]{43}"/g, '"code":"random"'),
  );
const ofTables = (rows: readonly StoredRow[]) => rows.filter(({ table }) => table !== 'event_outbox');
const sorted = (rows: readonly StoredRow[]) =>
  ofTables(rows)
    .map((row) => JSON.stringify(row))
    .toSorted();

interface Case {
  /** What the project or the tenant lacks, or the twins have besides. */
  change?: (db: Database) => PromiseLike<unknown>;
  run: (db: Database) => PromiseLike<unknown>;
  /** Left out: whatever it is without twins. */
  expected?: unknown;
  /** Another project of the tenant is its own. */
  ofTenant?: boolean;
  writesNothing?: boolean;
  /** Otherwise an error fails the case: it would be the same without twins. */
  throws?: boolean;
}

async function outcomeIn(world: readonly StoredRow[], { change, run, writesNothing, throws }: Case) {
  await replaceAll(binding, world);
  await change?.(db);
  const before = change || writesNothing ? await readAll(binding) : world;
  const result = await (throws
    ? run(db).then(
        () => null,
        (error: Error) => ({ thrown: error.message }),
      )
    : run(db));
  const after = await readAll(binding);
  expect(sorted(after.filter(isOfTwin))).toEqual(sorted(before.filter(isOfTwin)));
  if (writesNothing) expect(sorted(after)).toEqual(sorted(before));
  return {
    result: comparable(result),
    written: sorted(comparable(after.filter((row) => !isOfTwin(row))) as StoredRow[]),
  };
}

const actor = ACTOR;
const principal = {
  ...ACTOR,
  issuer: 'i',
  gid: 'g',
  role: 'owner',
  scopes: [],
  service: 'branchgate',
  issuedAt: NOW,
};
const mailed: unknown[] = [];
const context = () => {
  mailed.length = 0;
  const challenges = (to: string) => ({
    notify: async () => void mailed.push(to),
    start: async () => ({ expiresAt: 0 }),
    invite: async () => ({ expiresAt: 0 }),
  });
  const allowing = {
    idFromName: () => '',
    get: () => ({
      consume: async () => ({ admitted: true, limit: 9, remaining: 8, endsAt: NOW.getTime(), restMs: 1000 }),
    }),
  };
  return {
    env: { CHALLENGES: { idFromName: (name: string) => name, get: challenges }, RATE_LIMITER: allowing },
    db,
    settings: SETTINGS,
    client: CLIENT,
    principal,
    now: () => NOW,
    waitUntil: () => {},
  } as never;
};
const member = { db, settings: SETTINGS, principal, client: CLIENT, now: NOW } as never;
const ofProvider = { db, settings: SETTINGS, tenantId: 't', actor, now: NOW };
const place = { projectId: 'p', hostId: 'h', actor };
const job = (kind: Parameters<typeof newJob>[0], subject: object) =>
  newJob(kind, subject as never, { id: crypto.randomUUID(), ...place }, NOW) as never;
const ANSWERS: Record<string, object> = {
  'follow.status': { state: 'absent' },
  'change.apply': { reason: null, done: 1, schema: 'new', error: null, steps: [] },
};
const host = (method: string) => ANSWERS[method] ?? {};
const asked: unknown[] = [];
const saga = (kind: Parameters<typeof newJob>[0], subject: object) =>
  ({
    db,
    settings: SETTINGS,
    job: job(kind, subject),
    callHost: async (...call: [string, unknown]) => {
      asked.push(call);
      return host(call[0]);
    },
    report: () => {},
  }) as never;
const project = async () => {
  const [row] = await db.select().from(projects).where(eq(projects.id, 'p'));
  if (!row) throw new Error('no project');
  return row;
};
const branch = async (id: string = ID.main) => {
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
  if (!row) throw new Error('no branch');
  return row;
};
const written = (statements: Parameters<typeof inOneBatch>[1]) => inOneBatch(db, statements);
/** Whether a condition holds. */
const holds = (condition: SQL) =>
  db
    .select({ holds: sql`${condition}` })
    .from(projects)
    .where(eq(projects.id, 'p'));
const ofOthers = ne(projects.id, 'p');
/** Without what an isolate has cached. */
const fresh = () => overtaken(binding, async () => {});
const newRule = (cidr: string, more: object = {}) => insertRule(db, ruleRow(cidr, more), actor, null);
const newSnapshot = async (limit: number, kind: 'manual' | 'schedule') =>
  reserveSnapshot(
    db,
    { SNAPSHOT_LIMIT: limit },
    {
      jobId: crypto.randomUUID(),
      snapshotId: crypto.randomUUID(),
      branch: await branch(),
      name: null,
      kind,
      ttlSeconds: null,
      hostId: 'h',
      actor,
      createdBy: 'u',
      keyUse: null,
    },
    NOW,
  );
const newBranch = async () => {
  const choices = {
    life: { lifespan: '7d', ttlSeconds: 604_800 },
    leaseSeconds: null,
    labels: {},
    allow: [],
    attempts: null,
  };
  const names = {
    jobId: crypto.randomUUID(),
    isBatch: false,
    branches: [{ id: crypto.randomUUID(), name: 'new' }],
  };
  const source = ofBranch(await branch());
  const request = {
    ...names,
    project: await project(),
    source,
    creatorCidr: null,
    onExists: 'fail',
    actor,
    keyUse: null,
  };
  return reserveBranches(db, SETTINGS, { ...choices, ...request } as never, NOW);
};
const lastRule = async () => {
  const most = NETWORK_RULES_MAX - RANGES_OF_LIST.cloudflare.most - 4;
  const row = (n: number) => ruleRow(`10.0.${n >> 8}.${n & 255}/32`);
  await insertAllIf(
    db,
    networkRules,
    Array.from({ length: most }, (_, n) => row(n)),
    sql`true`,
  );
};
const othersAreBusy = (kind: string) =>
  db
    .update(jobs)
    .set({ status: 'running' })
    .where(and(ne(jobs.projectId, 'p'), sql`${jobs.kind} = ${kind}`));
const change = async () => {
  const [row] = await db.select().from(changes).where(eq(changes.id, ID.change));
  if (!row) throw new Error('no change');
  return row;
};
const changesOfOthers = (set: Partial<typeof changes.$inferInsert>) =>
  db.update(changes).set(set).where(ne(changes.projectId, 'p'));
const APPLYING = { lock_timeout_ms: 500, attempts: 1, budget_ms: 2000, accept_outage: false };
const application = async () => ({
  jobId: crypto.randomUUID(),
  snapshotId: crypto.randomUUID(),
  change: await change(),
  branch: { ...(await branch()), hold: null },
  options: APPLYING,
  dueAt: null,
  hostId: 'h',
  actor,
  createdBy: 'u',
});
const completed = async (
  tried: typeof applyChangeJob | typeof compareBranchJob | typeof cutOverJob | typeof stopFollowingJob,
  ending: never,
) => {
  asked.length = 0;
  const attempt = await tried.attempt(ending);
  for (const row of attempt?.steps ?? []) for (const { run } of row) await run().catch(() => {});
  await written(attempt?.complete(NOW) ?? []);
  return { steps: attempt?.steps.length, asked: [...asked] };
};
const COMPARISON = { against: { branchId: ID.main }, rows: true, schema: true };
const observed = {
  state: 'stopped',
  problem: { code: 'apply', message: 'm', table: null, statement: null },
  slot_bytes: 1,
  keep_bytes: 1,
};

const CASES: Record<string, Case> = {
  'the last rule that fits': { change: lastRule, run: () => newRule('198.51.100.1/32') },
  'a rule that only others have': {
    change: () => db.delete(networkRules).where(eq(networkRules.id, ID.rule)),
    run: () => newRule('192.0.2.1/32'),
  },
  'a rule that has moved to another tenant': {
    change: () => db.update(networkRules).set({ tenantId: 'x' }).where(eq(networkRules.id, ID.rule)),
    run: () => deleteRule(db, { projectId: 'p', ruleId: ID.rule }, actor, NOW),
    expected: { ok: false, failure: { code: 'NOT_FOUND' } },
  },
  'rules that end': { run: () => expireRules(db, 'p', NOW) },
  'the next end of a rule': { run: () => nextRuleEnd(db, 'p') },
  'rules of branches': { run: () => rulesOfBranches(db, 'p', [ID.feature]) },
  'access for the host': { run: () => db.batch(accessReads(db, 'p')) },
  'access while others are fenced': {
    change: () => db.update(moves).set({ phase: 'fenced' }).where(ne(moves.projectId, 'p')),
    run: () => db.batch(accessReads(db, 'p')),
  },
  'SQL over HTTP while others are admitted and fenced': {
    change: async () => {
      const { sealed } = await sealPassword(KEYS, ID.main, 'owner', 'password');
      await db.batch([
        db
          .update(branchCredentials)
          .set({ sealedPassword: sealed })
          .where(eq(branchCredentials.branchId, ID.main)),
        db.delete(networkRules).where(eq(networkRules.projectId, 'p')),
        db.update(moves).set({ phase: 'fenced' }).where(ne(moves.projectId, 'p')),
      ]);
    },
    run: async () =>
      readTarget(
        db,
        KEYS,
        {
          branchId: ID.main,
          role: 'owner',
          login: '',
          database: (await branch()).databaseName,
          password: 'password',
          applicationName: 'a',
        },
        { address: '192.0.2.1', checksPassword: true },
      ).then((target) => target && { isAdmitted: target.isAdmitted, isMoving: target.isMoving }),
    expected: { isAdmitted: false, isMoving: false },
  },
  'the next end of a branch': { run: () => nextEnd(db, 'p') },
  'the last branch of the limit': {
    change: () => db.update(projects).set({ branchLimit: 4 }).where(eq(projects.id, 'p')),
    run: newBranch,
  },
  'a branch that has the name': {
    run: async () => existingBranch(db, { project: await project(), branches: [{ name: 'main' }] } as never),
  },
  'a branch while others move': { change: () => othersAreBusy('project.move'), run: newBranch },
  'branches by list': { run: () => db.select().from(projectBranches).where(branchesOf('p', {})) },
  'branches by name': { run: () => referencedBranch(db, 'p', 'main', {}) },
  'branches that can be restored': {
    run: () => db.select().from(projectBranches).where(restorableBranchesOf('p', {})),
  },
  'the branch that is cloned': {
    run: () => sourceQueries('p', { source_branch_id: null }, {}).branches(db),
  },
  'the latest snapshot': { run: () => latestSnapshot(db, 'p', eq(projectBranches.isDefault, true), {}) },
  'a comparison while others compare': {
    change: () => othersAreBusy('branch.diff'),
    run: async () => {
      const about = { jobId: crypto.randomUUID(), branch: await branch(ID.feature), comparison: COMPARISON };
      const request = { ...about, hostId: 'h', actor };
      return reserveComparison(db, request, NOW);
    },
  },
  'the end of a comparison': {
    run: () =>
      completed(compareBranchJob, saga('branch.diff', { branchId: ID.feature, comparison: COMPARISON })),
  },
  'branches that retire': { run: () => retireBranches(db, 'p', NOW, () => {}) },
  'branches that expire': { run: () => expireBranches(db, SETTINGS, 'p', NOW) },
  'snapshots of a project that has moved': { run: () => written(forgetSnapshots(db, 'p', sql`true`)) },
  'snapshots that retire': { run: () => retireSnapshots(db, { SNAPSHOT_LIMIT: 2 }, 'p', NOW, () => {}) },
  'the next end of a snapshot': { run: () => nextExpiry(db, 'p') },
  'snapshots by list': { run: () => db.select().from(snapshots).where(snapshotsOf('p', {})) },
  'a snapshot that has moved to another tenant': {
    change: () => db.update(snapshots).set({ tenantId: 'x' }).where(eq(snapshots.id, ID.manual)),
    run: async () => {
      const [row] = await db.select().from(snapshots).where(eq(snapshots.id, ID.manual));
      if (!row) throw new Error('no snapshot');
      return deleteSnapshot(db, row, dropJob(row, { hostId: 'h', actor, createdBy: 'u' }, NOW), NOW);
    },
    expected: { ok: false, failure: { code: 'NOT_FOUND' } },
  },
  'the last snapshot of the limit': { run: () => newSnapshot(3, 'manual') },
  'a scheduled snapshot in place of one of others': {
    change: () => db.delete(snapshots).where(eq(snapshots.id, ID.scheduled)),
    run: () => newSnapshot(1, 'schedule'),
  },
  'a scheduled snapshot that is due': {
    change: () =>
      db.batch([
        db
          .update(projects)
          .set({
            snapshotSchedule: { every_hours: 1, keep: 3, masked: true } as never,
            snapshotDueAt: at(-1),
          })
          .where(eq(projects.id, 'p')),
        db.update(maskingPolicies).set({ version: 9 }).where(ne(maskingPolicies.projectId, 'p')),
        db.update(snapshots).set({ maskingVersion: 1 }).where(eq(snapshots.kind, 'schedule')),
      ]),
    run: () => takeScheduledSnapshot(db, SETTINGS, 'p', NOW, () => {}),
  },
  'webhooks that receive an event': {
    // The sibling's webhook for all projects of the tenant is one of ours too.
    change: async () => {
      await db.update(projects).set({ name: 'Changed' }).where(eq(projects.id, 'p'));
      await db.delete(webhooks).where(eq(webhooks.id, twinOf(ID.webhook, 'sibling')));
    },
    run: async () => {
      const received: string[] = [];
      let waiting = [
        {
          tenant_id: 't',
          type: 'storage.changed',
          branch_names: '[]',
          machine_id: null,
          id: ID.event,
          body: '{}',
          seq: 1,
          at: NOW.getTime(),
        },
      ];
      const log = {
        append: () => {},
        prune: () => {},
        waiting: () => waiting,
        handOver: () => {
          waiting = [];
        },
      };
      const deliver = async (id: string) => void received.push(id);
      await new EventFeed({ db, log: log as never, added: () => {}, deliver }).move('p');
      return received.toSorted();
    },
    expected: [ID.webhook, ID.ownWebhook],
  },
  'a key of a tenant that the user has left': {
    change: () => db.update(idempotencyKeys).set({ tenantId: 'x' }).where(eq(idempotencyKeys.userId, 'u')),
    run: () => recordedUses(db, { tenantId: 't', userId: 'u', path: '/x', key: 'k', bodyHash: 'b' }, NOW),
    expected: [],
  },
  'the provider of an address': {
    change: () =>
      db.update(signInPolicies).set({ ssoRequired: false }).where(ne(signInPolicies.tenantId, 't')),
    run: () => providerOfAddress(db, 'ada@acme.example'),
    expected: { required: true },
  },
  'a domain that is verified': {
    change: () => db.run(sql`update provider_domains set verified_at = null, domain = 'acme.example'`),
    run: () => verifyDomain(ofProvider, ID.provider, 'acme.example', 'operator'),
  },
  'the deletion of a provider without another owner': {
    change: () =>
      db.batch([
        db.update(accounts).set({ role: 'viewer' }).where(eq(accounts.tenantId, 't')),
        db
          .update(organizationMembers)
          .set({ role: 'viewer' })
          .where(eq(organizationMembers.organizationId, 'o')),
      ]),
    run: () => deleteProvider(ofProvider, ID.provider),
    expected: { ok: false, failure: { code: 'LAST_OWNER' } },
  },
  'the deletion of a provider': { run: () => deleteProvider(ofProvider, ID.provider) },
  'a user elsewhere with the id of a person': {
    change: () =>
      db
        .update(users)
        .set({ gid: ID.person, issuer: 'https://elsewhere.example' })
        .where(eq(users.id, twinOf(ID.personUser, 'earlier'))),
    run: () => written(endPeople(db, eq(providerPeople.id, ID.person))),
  },
  'a person who signs in': {
    run: () => admitPersonOf({ subject: 'subject', email: 'grace@acme.example' }),
  },
  'a person of SCIM who signs in': {
    run: () => admitPersonOf({ subject: 'joan', email: 'joan@acme.example' }),
  },
  'a provider with its domains': { run: () => providerOf(db, 't', ID.provider) },
  'the last provider of the limit': {
    ofTenant: true,
    change: async () => {
      const found = await db.select().from(identityProviders).where(eq(identityProviders.id, ID.provider));
      const more = Array.from({ length: 8 }, (_, n) =>
        found.map((row) => ({ ...row, id: `more-${n}`, issuer: `i${n}`, scimTokenHash: null })),
      );
      await insertAllIf(db, identityProviders, more.flat(), sql`true`);
    },
    run: () =>
      createProvider(
        ofProvider,
        {
          name: 'More',
          kind: 'github',
          client_id: 'c',
          client_secret: 's',
          domains: [],
          roles: {},
          default_role: 'viewer',
          role_claim: null,
        } as never,
        null,
      ),
    expected: { ok: true },
  },
  'other domains of a provider': {
    run: () => changeProvider(ofProvider, ID.provider, { domains: ['new.example'] }),
  },
  'open jobs of a kind': {
    change: () => db.update(jobs).set({ status: 'running' }).where(eq(jobs.kind, 'project.move')),
    run: () => db.select().from(jobs).where(isOpenOf('p', 'project.move')),
  },
  'open jobs': { change: () => db.update(jobs).set({ status: 'running' }), run: () => openJobs(db, 'p') },
  'a workload whose trust was made by a user who has left': {
    change: () => db.update(users).set({ tenantId: 'x' }).where(eq(users.id, 'u')),
    run: () => machineRecord(fresh(), { type: 'workload', id: ID.trust }, NOW),
    expected: null,
  },
  'a client that was signed in': {
    run: () => machineRecord(fresh(), { type: 'grant', id: ID.personGrant }, NOW),
  },
  'a client whose person is in another tenant': {
    change: () => db.update(users).set({ tenantId: 'x' }).where(eq(users.id, ID.personUser)),
    run: () => machineRecord(fresh(), { type: 'grant', id: ID.personGrant }, NOW),
    expected: null,
  },
  'a client whose person has no membership': {
    change: () => db.delete(organizationMembers).where(eq(organizationMembers.userId, ID.personUser)),
    run: () => machineRecord(fresh(), { type: 'grant', id: ID.personGrant }, NOW),
    expected: null,
  },
  'the clients of a tenant': {
    ofTenant: true,
    run: () =>
      db
        .select()
        .from(oauthGrants)
        .where(grantsOf({ tenantId: 't', userId: ID.personUser }, 'all')),
  },
  'the clients of a person': {
    ofTenant: true,
    run: () =>
      db
        .select({ id: oauthGrants.id })
        .from(oauthGrants)
        .where(grantsOf({ tenantId: 't', userId: ID.personUser }, 'own')),
    expected: [{ id: ID.personGrant }],
  },
  'another client that a person signs in': {
    ofTenant: true,
    run: () => newGrant({}),
    expected: { ok: true },
  },
  'another client of a person with as many of a former tenant as are allowed': {
    change: async () => {
      const [grant] = await db.select().from(oauthGrants).where(eq(oauthGrants.id, ID.personGrant));
      if (!grant) throw new Error('no grant');
      const former = () => ({
        ...grant,
        id: crypto.randomUUID(),
        codeHash: crypto.randomUUID(),
        tenantId: 'elsewhere',
      });
      await insertAllIf(db, oauthGrants, Array.from({ length: 50 }, former), sql`true`);
    },
    run: () => newGrant({}),
    expected: { ok: true },
  },
  'a refresh token of a person of a provider': {
    ofTenant: true,
    run: () => refreshed(ID.personGrant),
    expected: { ok: true },
  },
  'a refresh token that was used': {
    ofTenant: true,
    change: () => db.update(oauthGrants).set({ refreshId: 'next' }).where(eq(oauthGrants.id, ID.personGrant)),
    run: () => refreshed(ID.personGrant),
    expected: { ok: false, failure: { code: 'invalid_grant' } },
  },
  'a refresh token of an account whose company requires its provider': {
    run: () => refreshed(ID.grant),
    expected: { ok: false, failure: { code: 'invalid_grant' } },
  },
  'the sign-out of a client by its token': {
    ofTenant: true,
    run: async () =>
      revokeByToken(context(), { token: await grantToken(ID.personGrant), client_id: CLIENT_OF_GRANT }),
  },
  'a code that is exchanged': {
    ofTenant: true,
    run: () => exchanged(),
    expected: { ok: true },
  },
  'a code of a person who has left the tenant': {
    change: () => db.update(users).set({ tenantId: 'elsewhere' }).where(eq(users.id, ID.personUser)),
    run: () => exchanged(),
    expected: { ok: false, failure: { code: 'invalid_grant' } },
  },
  'another masking key': { run: async () => written([(await replacingKey(db, KEYS, 'p', NOW))(sql`true`)]) },
  'the masking key of a preview': {
    change: async () => written([(await replacingKey(db, KEYS, 'p', NOW))(sql`true`)]),
    run: async () => typeof (await previewKey(db, KEYS, 'p')),
    expected: 'string',
  },
  'branches that move': { run: () => movingBranches(db, 'p', {}) },
  'a move while others are busy': {
    change: () =>
      db.batch([
        db.update(jobs).set({ status: 'running' }).where(ne(jobs.projectId, 'p')),
        db.delete(snapshots).where(eq(snapshots.projectId, 'p')),
        db.delete(follows).where(eq(follows.projectId, 'p')),
        db.insert(hosts).values({
          id: 'h2',
          name: 'h2',
          dbHost: 'd',
          directPort: 1,
          pooledPort: 2,
          enrolledAt: NOW,
          createdAt: NOW,
        }),
      ]),
    run: async () => {
      const what = { toHostId: 'h2', branches: 'all', dropsSnapshots: false, ofDrain: false } as const;
      return reserveMove(
        db,
        SETTINGS,
        { jobId: crypto.randomUUID(), project: await project(), ...what, actor },
        {},
        NOW,
      );
    },
    expected: { ok: true },
  },
  'the switch of a move': {
    change: () =>
      db.batch([
        db.update(jobs).set({ status: 'running' }).where(ne(jobs.id, ID.moving)),
        db.update(moves).set({ phase: 'fenced' }).where(eq(moves.projectId, 'p')),
      ]),
    run: async () => {
      const [move] = await db.select().from(moves).where(eq(moves.jobId, ID.moving));
      const input = { toHostId: 'h3', leftOut: [], dropsSnapshots: true, actor };
      const moving = { ...newJob('project.move', input as never, { id: ID.moving, ...place }, NOW) };
      await db
        .insert(hosts)
        .values({ id: 'h3', name: 'h3', dbHost: 'd', directPort: 1, pooledPort: 2, createdAt: NOW })
        .onConflictDoNothing();
      await switchHost(
        { db, job: moving } as never,
        { move: { ...move, branches: [{ revision: 1 }] } } as never,
      );
    },
  },
  'a project that is shared otherwise': {
    run: () => shareProject(member, { projectId: 'p', userId: 'u', role: 'operator' }),
  },
  'a project that is shared with a user of several': {
    run: () => shareProject(member, { projectId: 'p', userId: 'u', role: 'viewer' }),
    change: () => db.delete(projectMembers).where(eq(projectMembers.projectId, 'p')),
  },
  'the projects of a user with one share': {
    change: () =>
      db.batch([
        db.delete(projectMembers).where(ne(projectMembers.projectId, 'p')),
        db.update(projectMembers).set({ userId: ID.personUser }),
      ]),
    run: () => db.select({ id: projects.id }).from(projects).where(isOwn(db, ID.personUser)),
    expected: [{ id: 'p' }],
  },
  'mail about drills that have failed elsewhere': {
    change: async () => {
      await db.update(hosts).set({
        description: sql`json_set(coalesce(description, '{}'), '$.drills_since', ${NOW.toISOString()})`,
      });
      await db.update(projects).set({ createdAt: new Date(0) });
      await recordDrill(db, DRILL);
      await db.run(sql`insert into audit_events (id, name, actor_type, tenant_id, project_id, metadata, created_at)
        select 'drill of ' || projects.id, audit_events.name, actor_type, 't', projects.id, json_set(metadata, '$.problem', 'log'), ${NOW.getTime() + 1}
        from audit_events join projects where audit_events.id = ${ID.manual} and projects.id <> 'p'`);
    },
    run: async () => {
      const mails: unknown[] = [];
      const mail = { MAIL_API_URL: 'https://mail.example', ALERT_EMAIL: 'ops@example.com' };
      const env = { ...ENVIRONMENT, ...mail, DB: binding };
      const send = async (...call: unknown[]) => void mails.push(call);
      await mailAboutDrills(env as never, send, NOW, 'p');
      return mails;
    },
    expected: [],
  },
  'what can be recovered while others have moved': {
    change: () =>
      db.batch([
        db.update(hosts).set({
          description: sql`json_set(coalesce(description, '{}'), '$.recoverable_from', '2020', '$.drills_since', '2020')`,
        }),
        db.update(moves).set({ keptUntil: NOW }).where(ne(moves.projectId, 'p')),
      ]),
    run: () => projectViews(db).where(eq(projects.id, 'p')),
  },
  'a project that is no longer shared': {
    run: () => unshareProject(member, { projectId: 'p', userId: 'u' }),
  },
  'a new tenant': {
    run: () =>
      createTenant(context(), { tenant_id: 'new', name: 'New', owner_email: 'joan@acme.example' }, null),
    expected: { ok: true },
  },
  'other limits of connection attempts': {
    run: async () =>
      changeProject(db, SETTINGS, (await project()) as never, { connection_attempts_per_minute: 3 }, actor),
  },
  'a creation that is abandoned': {
    change: () =>
      db.batch([
        db.update(projects).set({ status: 'creating' }),
        db.update(projectBranches).set({ status: 'creating' }).where(eq(projectBranches.isDefault, true)),
      ]),
    run: async () => {
      const undo = createProjectJob.undo?.record(saga('project.create', { branchId: ID.main }), false, NOW);
      await written(undo ?? []);
    },
  },
  'a project that is deleted': {
    run: () => markProjectDeleting(db, job('project.delete', { branchId: null }), NOW),
  },
  'records of a host with work of others': {
    change: () =>
      db.batch([
        db
          .update(projectBranches)
          .set({ expiresAt: null, deletesAt: null })
          .where(eq(projectBranches.projectId, 'p')),
        db.update(snapshots).set({ expiresAt: null }).where(eq(snapshots.projectId, 'p')),
        db.update(networkRules).set({ expiresAt: null }).where(eq(networkRules.projectId, 'p')),
        db.update(projectBranches).set({ status: 'deleted' }).where(eq(projectBranches.id, ID.failed)),
        db
          .update(jobs)
          .set({ status: 'succeeded', updatedAt: at(-2 * 86_400) })
          .where(eq(jobs.kind, 'project.move')),
        db.update(projects).set({ name: 'Changed' }).where(ofOthers),
        db.delete(eventOutbox).where(eq(eventOutbox.projectId, 'p')),
      ]),
    run: async () => {
      const records = await readRecords(db, 'h', NOW);
      return {
        project: records.projects.find(({ id }) => id === 'p'),
        inWork: records.inWork.filter(({ projectId }) => projectId === 'p'),
      };
    },
    expected: { project: { stale: false }, inWork: [] },
  },
  'a session of a person at another provider': {
    run: () => {
      const person = { id: ID.person, email: 'e', role: 'owner', tenantId: 't', version: 0 };
      return openSession(db, SETTINGS, { ...person, idp: { id: ID.group, issuer: 'i' } }, CLIENT, NOW);
    },
    expected: { ok: false },
  },
  'a renewal with a token of another provider': {
    run: async () =>
      renewSession(db, SETTINGS, await refreshToken(ID.group), { actorOf: () => actor, now: NOW }),
    expected: { ok: false },
  },
  'a renewal of a session': {
    run: async () =>
      renewSession(db, SETTINGS, await refreshToken(ID.provider), { actorOf: () => actor, now: NOW }),
    expected: { ok: true },
  },
  'a confirmation with a token of another provider': {
    run: async () => confirmSession(context(), await refreshToken(ID.group)),
    expected: { ok: false },
  },
  'the role of a person at another provider': {
    change: () => db.run(sql`update sessions set provider_id = ${ID.group} where id = ${ID.personSession}`),
    run: () => roleOf({ providerId: ID.group }),
    expected: { ok: false },
  },
  'the role of a person in a session of another provider': {
    change: () => db.run(sql`update sessions set provider_id = ${ID.group} where id = ${ID.personSession}`),
    run: () => roleOf({}),
    expected: { ok: false },
  },
  'the role of a person in another tenant': { run: () => roleOf({ tenantId: 'x' }), expected: { ok: false } },
  'a user whom an equally new token moves elsewhere meanwhile': {
    run: () => {
      const moved = () => db.update(users).set({ tenantId: 'x', tenantSeenAt: NOW }).where(eq(users.id, 'u'));
      return materialize(overtaken(binding, moved), { ...WHO, tenantId: 'new', issuedAt: NOW } as never, NOW);
    },
    expected: { ok: false },
  },
  'the role of a person': { run: () => roleOf({}), expected: { ok: true, value: 'owner' } },
  'the policy of a tenant': {
    ofTenant: true,
    change: () =>
      db
        .update(signInPolicies)
        .set({ ssoRequired: false, recoveryHash: null })
        .where(ne(signInPolicies.tenantId, 't')),
    run: () => readPolicy(db, 't'),
  },
  'a policy whose owner has tried it elsewhere': {
    ofTenant: true,
    change: () =>
      db.batch([
        db.update(providerPeople).set({ email: 'ada@acme.example' }).where(ne(providerPeople.tenantId, 't')),
        db.update(signInPolicies).set({ ssoRequired: false }).where(eq(signInPolicies.tenantId, 't')),
      ]),
    run: () => changePolicy(context(), { ...principal, email: 'ada@acme.example' } as never, true),
    expected: { ok: false, failure: { code: 'SSO_NOT_TRIED' } },
  },
  'a policy with domains and accounts of others': {
    ofTenant: true,
    change: async () => {
      const [ada] = await db.select().from(accounts).where(eq(accounts.id, ID.account));
      if (!ada) throw new Error('no account');
      await db.batch([
        db.insert(accounts).values({ ...ada, id: ID.other, email: 'ada2@aaaaaaaa.acme.example' }),
        db
          .update(accounts)
          .set({ email: 'bob@acme.example' })
          .where(eq(accounts.id, twinOf(ID.account, 'earlier'))),
        db.update(providerPeople).set({ email: 'bob@acme.example' }).where(ne(providerPeople.tenantId, 't')),
        db.update(signInPolicies).set({ ssoRequired: false }).where(eq(signInPolicies.tenantId, 't')),
      ]);
    },
    run: async () => {
      const changed = await changePolicy(
        context(),
        { ...principal, email: 'grace@acme.example' } as never,
        true,
      );
      return { ok: changed.ok, mailed: [...mailed].toSorted() };
    },
    expected: { ok: true },
  },
  'a recovery code while only others need one': {
    ofTenant: true,
    change: () =>
      db.update(signInPolicies).set({ ssoRequired: false }).where(eq(signInPolicies.tenantId, 't')),
    run: () => replaceOwnerCode(context(), principal as never),
    expected: { ok: false },
  },
  'a recovery code in the hands of an owner elsewhere': {
    ofTenant: true,
    change: async () => {
      await db
        .update(accounts)
        .set({ email: 'bob@acme.example' })
        .where(eq(accounts.id, twinOf(ID.account, 'earlier')));
      code = await newOwnerCode();
    },
    run: () => recoverOwner(context(), 'bob@acme.example', code),
    expected: { ok: false, failure: { code: 'CODE_WRONG' } },
    writesNothing: true,
  },
  'another recovery code': {
    ofTenant: true,
    run: () => replaceOwnerCode(context(), principal as never),
    expected: { ok: true },
  },
  'caps of a tenant': {
    change: () => db.update(tenantCaps).set({ projectLimit: 9 }).where(ne(tenantCaps.tenantId, 't')),
    run: () => changeTenantCaps(db, SETTINGS, 't', { project_limit: 3 }, CLIENT),
    ofTenant: true,
  },
  'a user who moves to another tenant': {
    ofTenant: true,
    run: () => materialize(fresh(), { ...WHO, tenantId: 'new', issuedAt: NOW } as never, NOW),
    expected: { ok: true },
  },
  'a new rule of a project that has moved to another tenant': {
    change: () => db.update(projects).set({ tenantId: 'x' }).where(eq(projects.id, 'p')),
    run: () => newRule('198.51.100.1/32'),
    expected: { ok: false, failure: { code: 'NOT_FOUND' } },
  },
  'blocks of a project that moves to another tenant meanwhile': {
    run: async () => {
      const report = {
        project_id: 'p',
        observed_at: NOW.toISOString(),
        blocks: [{ branch_id: ID.main, reason: 'disk', until: at(60).toISOString() }],
      };
      await new BlockRecorder({
        db: openDatabase(overtaken(binding, movedAway, 2)),
        storage: storage(),
        settings: () => SETTINGS,
        outbox: {} as never,
        mayAlert: async () => true,
      }).record(report as never);
    },
    throws: true,
    expected: { thrown: 'project p has changed while its blocks were recorded' },
  },
  'checkpoints that count for the storage': {
    change: () => db.update(snapshots).set({ kind: 'checkpoint' }),
    run: () => readSubject(db, 'p'),
    expected: { project: { id: 'p' } },
  },
  'the snapshot of a trial while others have newer policies': {
    change: () =>
      db.batch([
        db
          .update(snapshots)
          .set({ data: 'masked', kind: 'manual', status: 'ready', maskingVersion: 1 })
          .where(eq(snapshots.id, ID.manual)),
        db.update(maskingPolicies).set({ version: 2 }).where(ne(maskingPolicies.projectId, 'p')),
      ]),
    run: async () => {
      const [found] = await db.select().from(snapshots).where(eq(snapshots.id, ID.manual));
      return (await readyMasked(db, 'p', sql`${found?.branchId}`)).map(({ id }) => id);
    },
    expected: [ID.manual],
  },
  'a name that a rename of others leaves': {
    change: () =>
      db
        .update(jobs)
        .set({
          kind: 'branch.rename',
          status: 'running',
          input: sql`json_object('former', json_object('name', 'left'))`,
        })
        .where(ne(jobs.projectId, 'p')),
    run: () => holds(isUnrenamed('p', ['left'])[0]),
    expected: [{ holds: 1 }],
  },
  'usage of a project that moves to another tenant meanwhile': {
    run: async () => {
      const subject = await readSubject(db, 'p');
      await movedAway();
      const measurements = { load: async () => {}, last: () => null };
      const known = storage([['known_sizes', { [ID.main]: { bytes: 2 ** 31, at: 0 } }]]);
      const options = {
        db,
        storage: known,
        settings: () => SETTINGS,
        outbox: { put: () => {} },
        measurements,
      };
      await new StorageQuota(options as never).evaluate('p', subject);
      return db
        .select({ tenant: auditEvents.tenantId })
        .from(auditEvents)
        .where(eq(auditEvents.name, 'project.storage_state.changed'));
    },
    expected: [{ tenant: 'x' }],
  },
  'a token for a workload whose project moves to another tenant meanwhile': {
    run: async () => {
      const record = await machineRecord(fresh(), { type: 'workload', id: ID.trust }, NOW);
      if (!record) throw new Error('no trust');
      await movedAway();
      return recordIssue(record, 'repo', {
        database: binding,
        client: { ip: null, requestId: 'r' } as never,
        now: NOW,
      });
    },
    expected: { ok: false, failure: { code: 'invalid_request' } },
  },
  'what a project follows': { run: () => followOf(db, 'p') },
  'drills of recoveries': {
    run: async () => {
      await recordDrill(db, DRILL);
      return drillsOf(db, 'p');
    },
  },
  'the version of what a project follows': {
    change: () => db.update(follows).set({ source: sql`json_set(source, '$.version', project_id)` }),
    run: () => versionsOf(db, 'p'),
  },
  'whether a project follows': {
    change: () => db.delete(follows).where(eq(follows.projectId, 'p')),
    run: () => holds(isFollowing('p', ['following'])),
    expected: [{ holds: 0 }],
  },
  'a report of what a project follows': {
    run: () =>
      recordObservation(
        db,
        { id: 'p', tenantId: 't' },
        { ...observed, observed_at: NOW.toISOString() } as never,
        NOW,
      ),
  },
  'a project that follows again': {
    run: () =>
      recordResumed(db, { projectId: 'p', branchId: ID.main } as never, observed as never, actor, NOW),
  },
  'the end of following': {
    run: () => completed(stopFollowingJob, saga('follow.stop', { branchId: ID.main })),
    expected: { steps: 2 },
  },
  'a cut-over': {
    run: () => completed(cutOverJob, saga('follow.cutover', { branchId: ID.main, writesStopped: true })),
    expected: { steps: 2 },
  },
  'a cut-over that is undone': {
    run: () =>
      cutOverJob.undo?.run(saga('follow.cutover', { branchId: ID.main, writesStopped: true })) ??
      Promise.resolve(),
  },
  'a project that is deleted and follows': {
    run: async () => {
      const asked: unknown[] = [];
      const callHost = async (...call: unknown[]) => void asked.push(call);
      await stopFollowing({ ...(saga('project.delete', { branchId: null }) as object), callHost } as never);
      return asked;
    },
  },
  'a start of following': {
    change: () => db.update(follows).set({ state: 'cut_over' }),
    run: async () =>
      reserveStart(
        db,
        KEYS,
        {
          jobId: crypto.randomUUID(),
          branch: await branch(),
          sourceUrl: 'postgresql://s',
          what: { snapshotId: ID.manual, source: { host: 's', port: 1, database: 'd' }, tables: [] } as never,
          follow: { publication: null, version: '17', emptying: { jobId: ID.ended, snapshotId: ID.manual } },
          hostId: 'h',
          actor,
        },
        NOW,
      ),
  },
};

const CLIENT_OF_GRANT = 'https://agent.example/client.json';
const challengeOf = async (verifier: string) =>
  Buffer.from(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))).toString(
    'base64url',
  );
const withDatabase = () => {
  const plain = context() as unknown as { env: object };
  return { ...plain, env: { ...plain.env, DB: fresh() } } as never;
};
const grantToken = (sub: string) =>
  signOwnToken(SETTINGS, 'mcp_refresh', { sub, jti: ID.refresh }, { issuedAt: NOW, expiresAt: at(600) });
const refreshed = async (grant: string) =>
  refreshGrant(withDatabase(), { refresh_token: await grantToken(grant), client_id: CLIENT_OF_GRANT });
const newGrant = (consent: object) =>
  insertGrant(
    db,
    {
      request: { redirectUri: 'https://agent.example/callback', codeChallenge: 'c', resource: 'r' } as never,
      client: { id: CLIENT_OF_GRANT, name: 'Agent', redirectUris: [] },
      consent: {
        role: 'viewer',
        scopes: ['read'],
        permissions: [],
        project_id: null,
        branch_pattern: null,
        ...consent,
      },
    },
    { sessionId: ID.personSession },
    { ...actor, userId: ID.personUser },
    NOW,
  );
async function exchanged() {
  const codeChallenge = await challengeOf('verifier');
  await db
    .update(oauthGrants)
    .set({ codeHash: await sha256('code'), refreshId: null, codeChallenge, codeExpiresAt: at(60) })
    .where(eq(oauthGrants.id, ID.personGrant));
  return exchangeCode(withDatabase(), {
    code: 'code',
    client_id: CLIENT_OF_GRANT,
    redirect_uri: 'https://agent.example/callback',
    code_verifier: 'verifier',
  });
}
const admitPersonOf = async (who: { subject: string; email: string }) => {
  const [provider] = await db.select().from(identityProviders).where(eq(identityProviders.id, ID.provider));
  if (!provider) throw new Error('no provider');
  return admitPerson(db, provider, { ...who, claimValues: [] }, actor, NOW);
};
const refreshToken = (provider: string) =>
  signOwnToken(
    SETTINGS,
    'refresh',
    {
      jti: ID.personToken,
      sid: ID.personSession,
      sub: ID.person,
      idp: { id: provider, issuer: 'i' },
    } as never,
    { issuedAt: NOW, expiresAt: at(600) },
  );
const WHO = { issuer: 'i', gid: 'g', email: 'e', role: 'owner', scopes: [] };
const movedAway = () => db.update(projects).set({ tenantId: 'x' }).where(eq(projects.id, 'p'));
/** Of a Durable Object. */
const storage = (entries: [string, unknown][] = []) => {
  const stored = new Map<string, unknown>(entries);
  const kv = {
    get: (key: string) => stored.get(key),
    put: (key: string, value: unknown) => stored.set(key, value),
    delete: (key: string) => stored.delete(key),
  };
  return { kv } as never;
};
let code = '';
const newOwnerCode = async () => {
  const changed = await replaceOwnerCode(context(), principal as never);
  if (!changed.ok) throw new Error(changed.failure.code);
  return changed.value.recovery_code ?? '';
};
const roleOf = (more: object) =>
  currentAccountRole(
    db,
    { sessionId: ID.personSession, gid: ID.person, providerId: ID.provider, tenantId: 't', ...more } as never,
    NOW,
  );

/** What a request about our project or tenant names, and belongs to somebody else. */
const NAMED: Record<
  string,
  Omit<Case, 'run'> & { run: (of: (id: string) => string) => PromiseLike<unknown> }
> = {
  'a rule of a branch': { run: (of) => newRule('198.51.100.1/32', { branchId: of(ID.feature) }) },
  'the deletion of a rule': {
    run: (of) => deleteRule(db, { projectId: 'p', ruleId: of(ID.rule) }, actor, NOW),
  },
  'the end of a rule': {
    run: (of) => storeRuleChange({ expiresAt: NOW })(db, { projectId: 'p', ruleId: of(ID.rule) }, actor, NOW),
  },
  'a branch that is cloned': {
    run: (of) => sourceQueries('p', { source_branch_id: of(ID.feature) }, {}).branches(db),
  },
  'the branch of a snapshot': {
    run: (of) => sourceQueries('p', { source_branch_id: null, snapshot_id: of(ID.manual) }, {}).branches(db),
  },
  'a snapshot that is cloned': { run: (of) => cloneableSnapshot(db, 'p', of(ID.manual), {}) },
  'a branch that is restored': {
    run: (of) => db.batch(keptBranch(db, 'p', of(ID.deleted))).then(([rows]) => rows),
  },
  'measured bytes': {
    run: (of) =>
      storeDiskBytes(db, 'p', [
        { id: of(ID.main), own_bytes: 5, shared_bytes: 5 },
        { id: of(ID.manual), own_bytes: 5, shared_bytes: 5 },
      ]),
  },
  'the deletion of a trust': { run: (of) => deleteTrust(db, 'p', of(ID.trust), actor, NOW) },
  'the deletion of a key': { ofTenant: true, run: (of) => deleteApiKey(db, of(ID.key), actor, NOW) },
  'the sign-out of a client': {
    ofTenant: true,
    run: (of) => revokeGrant(db, of(ID.grant), grantsOf({ tenantId: 't', userId: 'u' }, 'all'), actor, NOW),
  },
  'the end of a grant': {
    ofTenant: true,
    run: async (of) => {
      const [grant] = await db.select().from(oauthGrants).where(eq(oauthGrants.id, ID.grant));
      if (!grant) throw new Error('no grant');
      return endGrant(db, { ...grant, id: of(ID.grant) }, 'revoked', actor, NOW);
    },
  },
  'a client that a person signs in': {
    ofTenant: true,
    run: (of) => newGrant({ project_id: of('p') }),
  },
  'a provider': { ofTenant: true, run: (of) => providerOf(db, 't', of(ID.provider)) },
  'roles of people': {
    change: () => db.update(providerPeople).set({ role: 'viewer' }),
    run: (of) => written(updateRoles(db, { id: ID.provider, tenantId: 't' }, [of(ID.person)])),
  },
  'claims of a person': {
    run: (of) => renewClaims(db, { id: ID.provider, tenantId: 't' } as never, of(ID.person), ['new']),
  },
};

const CHANGE_CASES: Record<string, Case> = {
  'a new change at the limit of the project': {
    change: () => changesOfOthers({ state: 'closed' }),
    run: async () =>
      createChange(
        db,
        { ...(await change()), id: crypto.randomUUID() },
        { actor, keyUse: null, response: { status: 201, body: {} } },
        NOW,
      ),
  },
  'a new change beside finished ones': {
    change: () => db.update(changes).set({ state: 'undone' }),
    run: async () =>
      createChange(
        db,
        { ...(await change()), id: crypto.randomUUID(), state: 'planned' },
        { actor, keyUse: null, response: { status: 201, body: {} } },
        NOW,
      ),
  },
  'the undo of a change while others apply': {
    change: () => changesOfOthers({ state: 'applying' }),
    run: async () => holds(undoOf(db, await change(), NOW).require[0]?.[0] as SQL),
    expected: [{ holds: 1 }],
  },
  'the rehearsal of a change': {
    run: async () =>
      reserveRehearsal(
        db,
        {
          jobId: crypto.randomUUID(),
          change: await change(),
          plan: { steps: [], schema: 'other', notModelled: [], base: null, mainChanges: [] },
          digest: 'of another plan',
          branch: await branch(),
          source: ofBranch(await branch()),
          hostId: 'h',
          actor,
        },
        NOW,
      ),
    expected: { ok: true },
  },
  'the application of a change while those of others run': {
    change: () => changesOfOthers({ state: 'applying' }),
    run: async () => reserveApplication(db, await application(), NOW),
    expected: { ok: true },
  },
  'the schedule of a change': {
    run: async () => schedule(db, { ...(await application()), dueAt: at(60) }, NOW),
    expected: { ok: true },
  },
  'changes that are due': {
    change: () =>
      db.update(changes).set({ state: 'scheduled', options: APPLYING, dueAt: at(-5), applier: actor }),
    run: () => applyDueChanges(db, 'p', NOW, () => {}),
  },
  'a change that is due, of a member who was removed': {
    change: async () => {
      await db.update(changes).set({ state: 'scheduled', options: APPLYING, dueAt: at(-5), applier: actor });
      await db.delete(organizationMembers).where(eq(organizationMembers.userId, actor.userId));
    },
    run: async () => {
      await applyDueChanges(db, 'p', NOW, () => {});
      const { state, application } = await change();
      return { state, reason: application?.reason };
    },
    expected: { state: 'stopped', reason: 'not_allowed' },
  },
  'the next change that is due': {
    change: () => changesOfOthers({ state: 'scheduled', dueAt: at(5) }),
    run: () => nextDueChange(db, 'p', NOW),
  },
  'the end of an application': {
    change: async () => {
      await db.update(changes).set({ state: 'applying', options: APPLYING, snapshotId: ID.manual });
      await changesOfOthers({ state: 'planned' });
    },
    run: async () => {
      const ending = saga('change.apply', {
        branchId: ID.main,
        snapshotId: ID.manual,
        changeId: ID.change,
      }) as { job: { id: string } };
      await db.update(changes).set({ jobId: ending.job.id }).where(eq(changes.id, ID.change));
      return completed(applyChangeJob, ending as never);
    },
  },
  'approvals of a change': { run: () => holds(countedApprovals(ID.change)), expected: [{ holds: 1 }] },
  'approvals of a change by a member who was removed': {
    change: () => db.delete(organizationMembers).where(eq(organizationMembers.userId, ID.personUser)),
    run: () => holds(countedApprovals(ID.change)),
    expected: [{ holds: 0 }],
  },
  'approvals of a change by an operator of other projects': {
    change: async () => {
      await db
        .update(organizationMembers)
        .set({ role: 'operator' })
        .where(eq(organizationMembers.userId, ID.personUser));
      await db.run(sql`insert into project_members (project_id, user_id, role, created_at)
        select id, ${ID.personUser}, 'operator', 0 from projects where id <> 'p' and tenant_id = 't'`);
    },
    run: () => holds(countedApprovals(ID.change)),
    expected: [{ holds: 0 }],
  },
  'approvals of a change by somebody of another tenant': {
    change: () => db.update(users).set({ tenantId: 'elsewhere' }).where(eq(users.id, ID.personUser)),
    run: () => holds(countedApprovals(ID.change)),
    expected: [{ holds: 0 }],
  },
  'approvals that a project needs': {
    change: () => db.update(projects).set({ changeApprovals: 2 }).where(ofOthers),
    run: () => holds(hasApprovals(ID.change)),
    expected: [{ holds: 1 }],
  },
  'an approval': {
    run: async () =>
      approve(
        db,
        { change: await change(), project: { id: 'p' }, actor: { ...actor, userId: ID.accountUser } },
        NOW,
      ),
    expected: { ok: true },
  },
  'the end of a change': {
    run: async () => closeChange(db, { change: await change(), actor }, NOW),
    expected: { ok: true },
  },
};

const NAMED_CASES = Object.entries(NAMED).flatMap(([name, { run, ...about }]) =>
  (about.ofTenant ? (['later'] as const) : (['later', 'sibling'] as const)).map((twin): [string, Case] => [
    `${name} of the ${twin}`,
    { ...about, run: () => run((id) => twinOf(id, twin)) },
  ]),
);

describe('nothing of others is read or changed by', () => {
  test.each([...Object.entries(CASES), ...Object.entries(CHANGE_CASES), ...NAMED_CASES])(
    '%s',
    async (_, tried) => {
      const alone = await outcomeIn(WORLD.alone, tried);
      const beside = await outcomeIn(tried.ofTenant ? WORLD.besideTenants : WORLD.besideAll, tried);
      expect(beside).toEqual(alone);
      if (Array.isArray(tried.expected)) expect(alone.result).toEqual(tried.expected);
      else if (tried.expected === null) expect(alone.result).toBeNull();
      else if (typeof tried.expected === 'object') expect(alone.result).toMatchObject(tried.expected);
      else if (tried.expected !== undefined) expect(alone.result).toBe(tried.expected);
    },
  );

  test('a twin, which has rows in all tables of the tenant', async () => {
    const tables = (rows: readonly StoredRow[]) => [...new Set(rows.map(({ table }) => table))].toSorted();
    expect(tables(others('earlier'))).toEqual(tables(OURS.filter(({ table }) => table !== 'hosts')));
  });
});
