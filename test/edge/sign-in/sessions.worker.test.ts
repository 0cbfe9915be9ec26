import { eq, inArray } from 'drizzle-orm';
import { decodeJwt } from 'jose';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { auditEvent, noActor } from '../../../edge/audit/audit-event.ts';
import { verifyOwnToken } from '../../../edge/authentication/own-tokens.ts';
import type { Identity } from '../../../edge/authentication/principal.ts';
import { identityProviders, providerPeople } from '../../../edge/database/company-schema.ts';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { type AccountRow, accounts } from '../../../edge/database/people-schema.ts';
import { auditEvents } from '../../../edge/database/schema.ts';
import { refreshTokens, type SessionRow, sessions } from '../../../edge/database/session-schema.ts';
import { ApiError, unwrap } from '../../../edge/errors.ts';
import type { Settings } from '../../../edge/settings.ts';
import {
  endSession,
  openSession as openSessionResult,
  renewSession as renewSessionResult,
  type SessionHolder,
} from '../../../edge/sign-in/sessions.ts';
import { currentAccountRole } from '../../../edge/tenancy/users.ts';
import { startD1 } from '../../support/records/d1.ts';
import { settingsFor } from '../../support/sign-in/provider.ts';

const openSession = async (...about: Parameters<typeof openSessionResult>) =>
  unwrap(await openSessionResult(...about));
const renewSession = async (...about: Parameters<typeof renewSessionResult>) =>
  unwrap(await renewSessionResult(...about));

const NOW = new Date('2026-11-21T12:00:00Z');
const later = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);
const WEEK = 604_800;
const settings = {
  ...settingsFor({ url: 'http://127.0.0.1:1' }),
  JWT_ACCESS_TTL_SECONDS: 900,
  JWT_REFRESH_TTL_SECONDS: WEEK,
} as unknown as Settings;

let d1: D1Database;
let db: Database;
/** A new one for each test. */
let account: AccountRow;

beforeAll(async () => {
  d1 = await startD1();
  db = openDatabase(d1);
});
beforeEach(async () => {
  const id = crypto.randomUUID();
  account = {
    id,
    email: `${id}@example.com`,
    name: 'Ada',
    passwordHash: 'none',
    role: 'owner',
    version: 0,
    tenantId: `tenant-${id}`,
    createdAt: NOW,
    updatedAt: NOW,
  };
  await db.insert(accounts).values(account);
});

const CLIENT = { ip: '192.0.2.1', userAgent: 'test' };
const open = async (at = NOW) => (await openSession(db, settings, account, CLIENT, at)).refreshToken ?? '';

const actorOf = ({ tenantId }: Pick<AccountRow, 'tenantId'>) => noActor(tenantId);
/** The next refresh token, or the reason of the refusal. */
async function renew(refreshToken: string, seconds: number, reusableForMs?: number): Promise<string> {
  try {
    const reuse = reusableForMs === undefined ? {} : { reusableForMs };
    const renewed = await renewSession(db, settings, refreshToken, {
      actorOf,
      now: later(seconds),
      ...reuse,
    });
    return renewed.refreshToken ?? '';
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    expect(error.failure).toEqual({ code: 'REFRESH_TOKEN_WRONG' });
    return `refused: ${error.message}`;
  }
}
const USED = 'refused: a refresh token that was used';
const ENDED = 'refused: no refresh token of a session';

const tokensOf = ({ id }: AccountRow) => {
  const theirs = db.select({ id: sessions.id }).from(sessions).where(eq(sessions.accountId, id));
  return db.select().from(refreshTokens).where(inArray(refreshTokens.sessionId, theirs));
};
const rows = () => tokensOf(account);
const events = async () => {
  const found = await db.select().from(auditEvents).where(eq(auditEvents.tenantId, account.tenantId));
  return found.map(({ name, metadata }) => ({ name, metadata }));
};
const sessionOf = (refreshToken: string) => String(decodeJwt(refreshToken).sid);
const stolen = (refreshToken: string) => ({
  name: 'session.stolen',
  metadata: { session_id: sessionOf(refreshToken) },
});

test('a new session has tokens with the account, the session and the expiry', async () => {
  const { accessToken, refreshToken, accessExpiresAt } = await openSession(
    db,
    settings,
    account,
    CLIENT,
    NOW,
  );
  expect(accessExpiresAt).toEqual(later(900));
  const [row] = await rows();
  expect(row).toMatchObject({ usedAt: null, expiresAt: later(WEEK) });
  expect(unwrap(await verifyOwnToken(settings, 'access', accessToken, NOW))).toMatchObject({
    sub: account.id,
    email: account.email,
    role: 'owner',
    scp: ['branchgate:read', 'branchgate:write'],
    tenant_id: account.tenantId,
    sid: row?.sessionId,
    exp: later(900).getTime() / 1000,
  });
  expect(unwrap(await verifyOwnToken(settings, 'refresh', refreshToken ?? '', NOW))).toEqual({
    sub: account.id,
    sid: row?.sessionId,
    jti: row?.id,
  });
});

describe('a renewal', () => {
  test('returns the next token of the same session, with the current role of the account', async () => {
    const first = await open();
    await db.update(accounts).set({ role: 'viewer' }).where(eq(accounts.id, account.id));
    const renewed = await renewSession(db, settings, first, { actorOf, now: later(60) });
    expect(renewed.accessExpiresAt).toEqual(later(960));
    const { role, sid } = unwrap(await verifyOwnToken(settings, 'access', renewed.accessToken, later(60)));
    expect([role, sid]).toEqual(['viewer', sessionOf(first)]);
    expect(renewed.refreshToken).not.toBe(first);
    const next = await renew(renewed.refreshToken ?? '', 120);
    expect(sessionOf(next)).toBe(sessionOf(first));
    expect(await rows()).toHaveLength(3);
    expect((await rows()).filter(({ usedAt }) => usedAt === null)).toHaveLength(1);
  });

  test.each([2, 20])('%i concurrent ones: exactly one succeeds, and the session continues', async (times) => {
    const first = await open();
    const outcomes = await Promise.all(Array.from({ length: times }, () => renew(first, 60)));
    const [winner = '', ...more] = outcomes.filter((outcome) => outcome !== USED);
    expect(more).toEqual([]);
    expect(await rows()).toHaveLength(2);
    expect(sessionOf(await renew(winner, 61))).toBe(sessionOf(first));
    expect(await events()).toEqual([]);
  });

  test('is possible without a time limit, while each token is used before it expires', async () => {
    let token = await open();
    for (const weeks of [1, 2, 3]) token = await renew(token, weeks * WEEK - weeks);
    expect(sessionOf(token)).toMatch(/^[0-9a-f-]{36}$/);
    expect(await renew(token, 5 * WEEK)).toBe('refused: token_expired');
  });

  test('is refused after the account was deleted', async () => {
    const first = await open();
    await db.delete(accounts).where(eq(accounts.id, account.id));
    expect(await renew(first, 60)).toBe(ENDED);
    expect(await rows()).toEqual([]);
  });

  test('is refused for other tokens, and an internal error is not reported as a wrong token', async () => {
    const { accessToken, refreshToken } = await openSession(db, settings, account, CLIENT, NOW);
    expect(await renew(accessToken, 60)).toBe('refused: own_token_wrong');
    expect(await renew('x', 60)).toBe('refused: token_kind_unknown');
    const broken = {
      ...settings,
      get JWT_KEYS(): never {
        throw new Error('broken');
      },
    };
    const attempt = renewSession(db, broken, refreshToken ?? '', { actorOf, now: NOW });
    await expect(attempt).rejects.toThrow(/^broken$/);
  });
});

describe('a token of a page, presented again', () => {
  const renewOnPage = (token: string, seconds: number) => renew(token, seconds, 10_000);

  test('within 10 s of its first use gives other tokens of the same session', async () => {
    const first = await open();
    const tabs = [await renewOnPage(first, 60), await renewOnPage(first, 65), await renewOnPage(first, 69)];
    expect(new Set(tabs).size).toBe(3);
    expect(new Set(tabs.map(sessionOf))).toEqual(new Set([sessionOf(first)]));
    expect(sessionOf(await renewOnPage(tabs[0] ?? '', 3600))).toBe(sessionOf(first));
    expect(await events()).toEqual([]);
  });

  test('later ends the session, however often it was used before', async () => {
    const first = await open();
    await renewOnPage(first, 60);
    const second = await renewOnPage(first, 69);
    expect(await renewOnPage(first, 71)).toBe(USED);
    expect(await renewOnPage(second, 72)).toBe(ENDED);
    expect(await events()).toEqual([stolen(first)]);
  });

  test('after the sign-out is refused', async () => {
    const first = await open();
    await renewOnPage(first, 60);
    await endSession(db, sessionOf(first), auditEvent('session.ended', noActor(account.tenantId), {}, NOW));
    expect(await renewOnPage(first, 61)).toBe(ENDED);
  });
});

describe('a used token, presented again', () => {
  test('within 10 s is refused, and the session continues', async () => {
    const first = await open();
    const second = await renew(first, 60);
    expect(await renew(first, 70)).toBe(USED);
    expect(sessionOf(await renew(second, 71))).toBe(sessionOf(first));
    expect(await events()).toEqual([]);
  });

  test('later ends the session for all its tokens, and is recorded once', async () => {
    const first = await open();
    const second = await renew(first, 60);
    const third = await renew(second, 65);
    const other = await open(later(61));
    const again = await Promise.all([1, 2, 3].map(() => renew(first, 70.001)));
    expect(again).toContain(USED);
    expect(again.filter((outcome) => outcome !== USED && outcome !== ENDED)).toEqual([]);
    for (const token of [first, second, third]) expect(await renew(token, 71)).toBe(ENDED);
    expect(await events()).toEqual([stolen(first)]);
    expect(sessionOf(await renew(other, 72))).toBe(sessionOf(other));
  });

  test('ends the session even if the next token is used concurrently', async () => {
    const first = await open();
    const second = await renew(first, 60);
    const [, third] = await Promise.all([renew(first, 80), renew(second, 80)]);
    expect(await rows()).toEqual([]);
    for (const token of [second, third]) expect(await renew(token, 81)).toMatch(/^refused/);
    expect(await events()).toEqual([stolen(first)]);
  });
});

test('expired tokens are deleted at any sign-in or renewal, and no others', async () => {
  const old = await open();
  await renew(old, 60);
  const mine = account;
  const countRows = async () => (await tokensOf(mine)).length;
  const fresh = await open(later(120));
  await renew(fresh, WEEK);
  expect(await countRows()).toBe(3);
  await open(later(WEEK + 60));
  expect(await countRows()).toBe(3);
});

describe('the end of a session', () => {
  const end = (refreshToken: string) => {
    const event = auditEvent('session.ended', noActor(account.tenantId), {}, NOW);
    return endSession(db, sessionOf(refreshToken), event);
  };

  test('applies to all its tokens, is recorded once, and affects no other session', async () => {
    const first = await open();
    const second = await renew(first, 60);
    const other = await open();
    await Promise.all([end(first), end(second)]);
    for (const token of [first, second]) expect(await renew(token, 61)).toBe(ENDED);
    expect((await events()).map(({ name }) => name)).toEqual(['session.ended']);
    expect(sessionOf(await renew(other, 62))).toBe(sessionOf(other));
  });

  test('concurrent with a renewal leaves no token that could be renewed', async () => {
    const first = await open();
    const [renewed] = await Promise.all([renew(first, 60), end(first)]);
    expect(await renew(renewed, 61)).toMatch(/^refused/);
    expect(await rows()).toEqual([]);
  });
});

describe('a session of an account or of a person', () => {
  let person: SessionHolder;
  beforeEach(async () => {
    const id = crypto.randomUUID();
    const providerId = crypto.randomUUID();
    const times = { createdAt: NOW, updatedAt: NOW };
    const { email, tenantId } = account;
    await db.insert(identityProviders).values({
      id: providerId,
      tenantId,
      kind: 'oidc',
      name: 'P',
      issuer: 'https://idp.example',
      clientId: 'c',
      keyId: 'k',
      sealedSecret: 's',
      defaultRole: 'viewer',
      roles: [],
      ...times,
    });
    const row = {
      id,
      providerId,
      tenantId,
      userName: email,
      email,
      role: 'owner',
      claimValues: [],
    };
    await db
      .insert(providerPeople)
      .values({ ...row, provisioned: false, active: true, attributes: {}, ...times });
    person = { ...row, version: 0, idp: { id: providerId, issuer: 'https://idp.example' } };
  });

  const HOLDERS: Record<string, { holder: () => SessionHolder; remove: () => Promise<unknown> }> = {
    account: {
      holder: () => account,
      remove: () => db.delete(accounts).where(eq(accounts.id, account.id)),
    },
    person: {
      holder: () => person,
      remove: () => db.delete(providerPeople).where(eq(providerPeople.id, person.id)),
    },
  };

  test.each(Object.entries(HOLDERS))('ends with its %s at the next call', async (_, { holder, remove }) => {
    const { id: gid, email, role, tenantId, idp } = holder();
    const { refreshToken, accessToken } = await openSession(db, settings, holder(), CLIENT, NOW);
    const { sid } = unwrap(await verifyOwnToken(settings, 'access', accessToken, NOW));
    const identity = { sessionId: sid, gid, email, role, tenantId, ...(idp && { providerId: idp.id }) };
    const roleNow = () => currentAccountRole(db, identity as Identity, later(1));
    expect(await roleNow()).toEqual({ ok: true, value: 'owner' });
    await remove();
    expect(await roleNow()).toMatchObject({ ok: false });
    expect(await renew(refreshToken ?? '', 1)).toBe(ENDED);
    expect(
      await db
        .select()
        .from(sessions)
        .where(eq(sessions.id, String(sid))),
    ).toEqual([]);
    const left = await db
      .select()
      .from(refreshTokens)
      .where(eq(refreshTokens.sessionId, String(sid)));
    expect(left).toEqual([]);
  });

  const PROVIDER = { providerId: 'p', checkedAt: NOW };
  const of = (columns: Partial<SessionRow>) => () => ({
    id: crypto.randomUUID(),
    lastUsedAt: NOW,
    expiresAt: NOW,
    createdAt: NOW,
    ...columns,
  });
  const WRONG: Record<string, () => typeof sessions.$inferInsert> = {
    'without a holder': of({}),
    'of both': () => of({ accountId: account.id, personId: person.id, ...PROVIDER })(),
    'of an account with a provider': () => of({ accountId: account.id, ...PROVIDER })(),
    'of an account with a token of a provider': () =>
      of({ accountId: account.id, keyId: 'k', sealedRefresh: 's' })(),
    'of a person without a provider': () => of({ personId: person.id, checkedAt: NOW })(),
    'of a person that was never checked': () => of({ personId: person.id, providerId: 'p' })(),
    'with a key and no token': () => of({ personId: person.id, ...PROVIDER, keyId: 'k' })(),
  };
  test.each(Object.entries(WRONG))('cannot be stored %s', async (_, row) => {
    await expect(db.insert(sessions).values(row())).rejects.toMatchObject({
      cause: { message: expect.stringContaining('CHECK constraint failed: sessions_') },
    });
  });
});
