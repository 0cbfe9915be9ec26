import { changes } from '../../../edge/database/change-schema.ts';
import {
  identityProviders,
  providerDomains,
  providerGroupMembers,
  providerGroups,
  providerPeople,
  signInPolicies,
} from '../../../edge/database/company-schema.ts';
import { type Database, inOneBatch } from '../../../edge/database/database.ts';
import { webhooks } from '../../../edge/database/event-schema.ts';
import { differences } from '../../../edge/database/history-schema.ts';
import { maskingKeys, maskingPolicies } from '../../../edge/database/masking-schema.ts';
import { moves } from '../../../edge/database/move-schema.ts';
import { oauthGrants } from '../../../edge/database/oauth-schema.ts';
import {
  accounts,
  apiKeys,
  invitations,
  ownerInvitations,
  projectMembers,
  trusts,
} from '../../../edge/database/people-schema.ts';
import {
  auditEvents,
  branchCredentials,
  idempotencyKeys,
  jobs,
  networkRules,
  organizationMembers,
  organizations,
  projectBranches,
  snapshots,
  tenantCaps,
  users,
} from '../../../edge/database/schema.ts';
import { refreshTokens, sessions } from '../../../edge/database/session-schema.ts';
import { follows } from '../../../edge/database/source-schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { changeRow } from './changes.ts';
import { ACTOR, branchRow, ruleRow } from './records.ts';

/** The moment of these records. */
export const NOW = new Date('2026-11-23T12:00:00Z');
export const at = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);
const EARLIER = new Date('2026-01-01T00:00:00Z');
const times = { createdAt: EARLIER, updatedAt: EARLIER };
const uuid = (n: number) => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;

/** The ids of what `insertTenant` inserts. */
export const ID = {
  main: uuid(1),
  feature: uuid(2),
  expired: uuid(3),
  deleted: uuid(4),
  failed: uuid(5),
  manual: uuid(11),
  scheduled: uuid(12),
  kept: uuid(13),
  over: uuid(14),
  rule: uuid(21),
  branchRule: uuid(22),
  endedRule: uuid(23),
  named: uuid(24),
  comparison: uuid(31),
  following: uuid(32),
  moving: uuid(33),
  ended: uuid(34),
  key: uuid(41),
  trust: uuid(42),
  webhook: uuid(43),
  ownWebhook: uuid(44),
  invitation: uuid(45),
  event: uuid(46),
  account: uuid(51),
  session: uuid(52),
  other: uuid(53),
  provider: uuid(61),
  person: uuid(62),
  personSession: uuid(63),
  group: uuid(64),
  unlinked: uuid(65),
  personToken: uuid(66),
  accountUser: uuid(71),
  personUser: uuid(72),
  policy: uuid(81),
  grant: uuid(91),
  personGrant: uuid(92),
  refresh: uuid(93),
  change: uuid(94),
} as const;

const branch = (id: string, status: Parameters<typeof branchRow>[0], more: object = {}) => ({
  ...branchRow(status),
  id,
  branchName: id,
  databaseName: `db_${id}`,
  ...more,
});

const content = { data: 'full' as const, keepTables: [], maskingVersion: null, checkedAt: null };
const snapshot = (id: string, branchId: string, more: Partial<typeof snapshots.$inferInsert>) => ({
  id,
  projectId: 'p',
  branchId,
  branchName: branchId,
  kind: 'manual' as const,
  status: 'ready' as const,
  sizeBytes: 1000,
  ...content,
  takenAt: at(-600),
  expiresAt: null,
  tenantId: 't',
  createdAt: EARLIER,
  ...more,
});

const person = (id: string, more: Partial<typeof providerPeople.$inferInsert>) => ({
  id,
  providerId: ID.provider,
  tenantId: 't',
  subject: 'subject',
  userName: 'grace@acme.example',
  email: 'grace@acme.example',
  role: 'owner',
  claimValues: ['staff'],
  provisioned: true,
  active: true,
  attributes: {},
  signedInAt: EARLIER,
  ...times,
  ...more,
});

/** The tenant `t` of `startRecords` with project `p` and one of everything that a tenant can have. */
export async function insertTenant(db: Database): Promise<void> {
  const about = { projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = <K extends Parameters<typeof newJob>[0]>(
    kind: K,
    id: string,
    subject: object,
    more: Partial<typeof jobs.$inferInsert> = {},
  ) => ({ ...newJob(kind, subject as never, { id, ...about }, at(-60)), ...more });
  const comparison = { against: { branchId: ID.main }, rows: true, schema: true };
  const user = { issuer: 'https://idp.example', role: 'owner', tenantId: 't', tenantSeenAt: EARLIER };
  const account = {
    id: ID.account,
    tenantId: 't',
    email: 'ada@acme.example',
    name: 'Ada',
    passwordHash: 'x',
    role: 'owner',
    version: 0,
    ...times,
  };
  const provider = {
    id: ID.provider,
    tenantId: 't',
    kind: 'oidc' as const,
    name: 'Acme',
    issuer: 'https://idp.example',
    clientId: 'c',
    keyId: '1',
    sealedSecret: 's',
    defaultRole: 'viewer' as const,
    roleClaim: 'groups',
    roles: [['staff', 'owner']] as [string, 'owner'][],
    scimTokenHash: 'hash',
    createdBy: 'u',
    ...times,
  };
  const grant = {
    clientId: 'https://agent.example/client.json',
    clientName: 'Agent',
    role: 'operator' as const,
    scopes: ['read' as const],
    projectId: 'p',
    codeExpiresAt: EARLIER,
    redirectUri: 'https://agent.example/callback',
    codeChallenge: 'c',
    resource: 'http://127.0.0.1/mcp',
    refreshId: ID.refresh,
    expiresAt: at(3600),
    tenantId: 't',
    createdAt: EARLIER,
  };
  const session = { lastUsedAt: EARLIER, expiresAt: at(3600), createdAt: EARLIER };
  await inOneBatch(db, [
    db.insert(users).values([
      {
        ...user,
        id: ID.accountUser,
        issuer: 'http://127.0.0.1',
        gid: ID.account,
        email: account.email,
        ...times,
      },
      { ...user, id: ID.personUser, gid: ID.person, email: 'grace@acme.example', ...times },
    ]),
    db.insert(organizations).values({ id: 'o', idpTenantId: 't', name: 'Acme', createdAt: EARLIER }),
    db.insert(organizationMembers).values(
      ['u', ID.accountUser, ID.personUser].map((userId) => ({
        organizationId: 'o',
        userId,
        role: 'owner',
        createdAt: EARLIER,
      })),
    ),
    db
      .insert(tenantCaps)
      .values({ tenantId: 't', projectLimit: 5, storageQuotaLimitGib: 9, updatedAt: EARLIER }),
    db
      .insert(projectBranches)
      .values(branch(ID.main, 'active', { isDefault: true, branchName: 'main', connectionAttempts: 7 })),
    db
      .insert(projectBranches)
      .values(branch(ID.feature, 'active', { parentBranchId: ID.main, expiresAt: at(-5), ttlSeconds: 60 })),
    db
      .insert(projectBranches)
      .values(branch(ID.expired, 'expired', { deletesAt: at(-5), expiresAt: at(-600), ttlSeconds: 60 })),
    db
      .insert(projectBranches)
      .values(branch(ID.deleted, 'deleted', { deletedAt: at(-100), deletesAt: at(900) })),
    db.insert(projectBranches).values(branch(ID.failed, 'failed', {})),
    db.insert(branchCredentials).values(
      [ID.main, ID.deleted].map((branchId) => ({
        branchId,
        role: 'owner' as const,
        keyId: '1',
        sealedPassword: 's',
        revision: 1,
        updatedAt: EARLIER,
      })),
    ),
    db.insert(networkRules).values([
      { ...ruleRow('192.0.2.1/32'), id: ID.rule },
      { ...ruleRow('192.0.2.2/32', { branchId: ID.feature }), id: ID.branchRule },
    ]),
    db.insert(networkRules).values([
      { ...ruleRow('192.0.2.3/32', { expiresAt: at(-5) }), id: ID.endedRule },
      { ...ruleRow('cloudflare', { listVersion: 1 }), id: ID.named },
    ]),
    db
      .insert(snapshots)
      .values([
        snapshot(ID.manual, ID.main, { name: 'before', spares: 2 }),
        snapshot(ID.scheduled, ID.main, { kind: 'schedule' }),
      ]),
    db
      .insert(snapshots)
      .values([
        snapshot(ID.kept, ID.deleted, { kind: 'deleted', expiresAt: at(900) }),
        snapshot(ID.over, ID.main, { kind: 'safety', expiresAt: at(-5) }),
      ]),
    db
      .insert(jobs)
      .values([
        job('branch.diff', ID.comparison, { branchId: ID.feature, comparison }, { status: 'succeeded' }),
        job(
          'follow.start',
          ID.following,
          { branchId: ID.main, snapshotId: ID.manual },
          { status: 'succeeded' },
        ),
      ]),
    db
      .insert(jobs)
      .values([
        job('project.move', ID.moving, { branchId: null }, { status: 'failed' }),
        job(
          'snapshot.create',
          ID.ended,
          { branchId: ID.main, snapshotId: ID.manual },
          { status: 'succeeded' },
        ),
      ]),
    db
      .insert(differences)
      .values({ jobId: ID.comparison, projectId: 'p', result: {} as never, createdAt: EARLIER }),
    db.insert(follows).values({
      projectId: 'p',
      branchId: ID.main,
      tenantId: 't',
      jobId: ID.following,
      state: 'following',
      source: { host: 's', port: 1, database: 'd', version: '17' },
      tables: [],
      observedAt: at(-60),
      ...times,
    }),
    db.insert(moves).values({
      projectId: 'p',
      jobId: ID.moving,
      fromHostId: 'h',
      toHostId: 'h',
      phase: 'building',
      keyId: '1',
      branches: [],
      ...times,
    }),
    db.insert(changes).values(
      changeRow({
        id: ID.change,
        state: 'approved',
        sourceBranchId: ID.feature,
        sourceName: 'feature',
        approvals: [
          { user_id: ID.personUser, email: 'grace@acme.example', digest: 'of the plan', at: '2026-01-01' },
        ],
        snapshotId: ID.over,
        jobId: ID.ended,
        ...times,
      }),
    ),
    db.insert(maskingPolicies).values({
      id: ID.policy,
      projectId: 'p',
      version: 1,
      rules: [],
      unlisted: 'keep',
      createdBy: 'u',
      createdAt: EARLIER,
    }),
    db.insert(maskingKeys).values({ projectId: 'p', keyId: '1', sealedKey: 's', createdAt: EARLIER }),
    db.insert(apiKeys).values({
      id: ID.key,
      tenantId: 't',
      name: 'CI',
      role: 'operator',
      scopes: ['read'],
      projectId: 'p',
      secretHash: 'x',
      expiresAt: at(3600),
      createdBy: ID.personUser,
      createdAt: EARLIER,
    }),
    db.insert(trusts).values({
      id: ID.trust,
      projectId: 'p',
      issuer: 'https://ci.example',
      audience: 'a',
      claims: {},
      role: 'operator',
      createdBy: 'u',
      createdAt: EARLIER,
    }),
    db.insert(webhooks).values(
      [null, 'p'].map((projectId) => ({
        id: projectId === null ? ID.webhook : ID.ownWebhook,
        tenantId: 't',
        url: 'https://w',
        events: ['storage.changed' as const],
        projectId,
        keyId: '1',
        sealedSecret: 'x',
        createdBy: 'u',
        createdAt: EARLIER,
      })),
    ),
    db.insert(projectMembers).values({ projectId: 'p', userId: 'u', role: 'viewer', createdAt: EARLIER }),
    db.insert(accounts).values(account),
    db.insert(sessions).values({ id: ID.session, accountId: ID.account, ...session }),
    db.insert(refreshTokens).values({ id: 'r', sessionId: ID.session, expiresAt: at(3600) }),
    db.insert(invitations).values({
      id: ID.invitation,
      tenantId: 't',
      email: 'joan@acme.example',
      role: 'viewer',
      invitedBy: 'u',
      expiresAt: at(3600),
      createdAt: EARLIER,
    }),
    db.insert(ownerInvitations).values({
      id: ID.other,
      tenantId: 't',
      email: 'joan@acme.example',
      expiresAt: at(3600),
      createdAt: EARLIER,
    }),
    db.insert(identityProviders).values(provider),
    db.insert(providerDomains).values({
      providerId: ID.provider,
      domain: 'acme.example',
      tenantId: 't',
      verification: 'v',
      verifiedAt: EARLIER,
      createdAt: EARLIER,
    }),
    db.insert(providerPeople).values(person(ID.person, {})),
    db.insert(providerPeople).values(
      person(ID.unlinked, {
        subject: null,
        userName: 'joan@acme.example',
        email: 'joan@acme.example',
        role: 'viewer',
      }),
    ),
    db
      .insert(providerGroups)
      .values({ id: ID.group, providerId: ID.provider, displayName: 'admins', ...times }),
    db.insert(providerGroupMembers).values({ groupId: ID.group, personId: ID.person }),
    db.insert(sessions).values({
      id: ID.personSession,
      personId: ID.person,
      providerId: ID.provider,
      checkedAt: NOW,
      ...session,
    }),
    db.insert(refreshTokens).values({ id: ID.personToken, sessionId: ID.personSession, expiresAt: at(3600) }),
    db
      .insert(signInPolicies)
      .values({ tenantId: 't', ssoRequired: true, recoveryHash: 'hash', updatedAt: EARLIER }),
    db.insert(oauthGrants).values([
      { ...grant, id: ID.grant, codeHash: 'account', sessionId: ID.session, createdBy: ID.accountUser },
      {
        ...grant,
        id: ID.personGrant,
        codeHash: 'person',
        sessionId: ID.personSession,
        createdBy: ID.personUser,
      },
    ]),
    db.insert(idempotencyKeys).values({
      tenantId: 't',
      userId: 'u',
      path: '/x',
      key: 'k',
      bodyHash: 'b',
      jobId: ID.ended,
      status: 201,
      body: {},
      expiresAt: at(3600),
    }),
    db.insert(auditEvents).values({
      id: ID.event,
      name: 'branch.deleted',
      tenantId: 't',
      projectId: 'p',
      branchId: ID.deleted,
      metadata: { record: {} },
      createdAt: at(-100),
    }),
  ]);
}
