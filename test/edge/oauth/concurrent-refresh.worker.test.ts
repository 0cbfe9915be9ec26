import { eq } from 'drizzle-orm';
import { afterAll, beforeEach, expect, test, vi } from 'vitest';
import { signOwnToken, verifyOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { oauthGrants } from '../../../edge/database/oauth-schema.ts';
import { refreshGrant } from '../../../edge/oauth/grant-tokens.ts';
import { startRecords } from '../../support/records/records.ts';
import { at, ID, insertTenant, NOW } from '../../support/records/tenant.ts';
import { readAll, replaceAll } from '../../support/records/twins.ts';

const SETTINGS = {
  BASE_URL: 'http://127.0.0.1',
  SERVICE_NAME: 'branchgate',
  JWT_KEYS: [{ id: '1', bytes: new Uint8Array(32) }],
  JWT_REFRESH_TTL_SECONDS: 900,
};
const CLIENT_ID = 'https://agent.example/client.json';

vi.useFakeTimers({ toFake: ['Date'], now: NOW });
afterAll(() => vi.useRealTimers());

const { binding, db } = await startRecords();
await insertTenant(db);
const rows = await readAll(binding);
beforeEach(() => replaceAll(binding, rows));

const first = await signOwnToken(
  SETTINGS,
  'mcp_refresh',
  { sub: ID.personGrant, jti: ID.refresh },
  { issuedAt: NOW, expiresAt: at(3600) },
);

/** A refresh that arrives at the first of these seconds, and is decided at the second one. */
async function refresh(refresh_token: string, arrives: number, decides = arrives) {
  const clock = [at(arrives), at(decides)];
  const context = {
    env: { DB: binding },
    db,
    settings: SETTINGS,
    client: { ip: null, userAgent: null, requestId: 'r' },
    now: () => (clock.length > 1 ? clock.shift() : clock[0]),
    waitUntil: () => {},
  } as never;
  const refreshed = await refreshGrant(context, { refresh_token, client_id: CLIENT_ID });
  return refreshed.ok ? refreshed.value.refreshToken : refreshed.failure.code;
}
const idOf = async (token: string) => {
  const verified = await verifyOwnToken(SETTINGS, 'mcp_refresh', token, NOW);
  return verified.ok ? verified.value.jti : null;
};
const isThere = async () =>
  (await db.select().from(oauthGrants).where(eq(oauthGrants.id, ID.personGrant))).length;

test('refreshes that arrive before the first one is answered get the same next token', async () => {
  const next = await refresh(first, 0, 2);
  expect(await idOf(await refresh(first, 1))).toBe(await idOf(next));
  expect(await idOf(next)).not.toBe(ID.refresh);
  expect(await refresh(next, 3)).toMatch(/^ey/);
  expect(await isThere()).toBe(1);
});

test.each([2, 3, 600])('one that arrives %i s later ends the sign-in', async (arrives) => {
  const next = await refresh(first, 0, 2);
  expect(await refresh(first, arrives)).toBe('invalid_grant');
  expect(await isThere()).toBe(0);
  expect(await refresh(next, arrives)).toBe('invalid_grant');
});

test('one of a token that is older than the last ends it, whenever it arrives', async () => {
  const second = await refresh(first, 0, 2);
  await refresh(second, 3, 5);
  expect(await refresh(first, 1)).toBe('invalid_grant');
  expect(await isThere()).toBe(0);
});
