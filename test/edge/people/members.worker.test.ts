import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { verifyOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { rejection } from '../../../edge/authentication/rejection.ts';
import { openDatabase } from '../../../edge/database/database.ts';
import { unwrap } from '../../../edge/errors.ts';
import { currentAccountRole, materialize } from '../../../edge/tenancy/users.ts';
import { Api } from '../../support/api.ts';
import { accept, newMember, newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import { newSigner, startProvider } from '../../support/sign-in/provider.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { askMagicLink, logIn, mailTo, readCode, verifyCode } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const signer = newSigner('key-1');
let gateway: SignInGateway;
let provider: Awaited<ReturnType<typeof startProvider>>;
let owner: TestPerson;
let count = 0;

beforeAll(async () => {
  provider = await startProvider(signer);
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: provider.url });
});
afterAll(async () => {
  await gateway.stop();
  await provider.stop();
});
beforeEach(async () => {
  count += 1;
  owner = await newOwner(gateway, `owner-${count}@example.com`);
});

const memberWith = (role: string) => newMember(owner, gateway, `${role}-${count}@example.com`, role);
const change = (by: TestPerson, userId: string, role: string) =>
  by.api.patch(`/api/v1/members/${userId}`, { role });
const remove = (by: TestPerson, userId: string) => by.api.delete(`/api/v1/members/${userId}`);
const renew = ({ login: { refresh_token } }: TestPerson) =>
  new Api(gateway.url, null).post('/api/v1/auth/refresh', { refresh_token });
const listed = async ({ api }: TestPerson) => {
  const { body } = await api.get<{ members: { email: string; role: string }[] }>('/api/v1/members');
  return body.members.map(({ email, role }) => [email.replace(/-\d+@.*/, ''), role]);
};
const eventsOf = async (name: string) => {
  const { body } = await owner.api.get<{ audit_events: { actor_email: string; metadata: object }[] }>(
    `/api/v1/audit-events?name=${name}`,
  );
  return body.audit_events.map(({ actor_email, metadata }) => ({ actor_email, ...metadata }));
};

test('the list has the accounts of the tenant with their present roles, and nobody else', async () => {
  const viewer = await memberWith('viewer');
  expect(await listed(owner)).toEqual([
    ['owner', 'owner'],
    ['viewer', 'viewer'],
  ]);
  await change(owner, viewer.userId, 'operator');
  expect(await listed(owner)).toEqual([
    ['owner', 'owner'],
    ['viewer', 'operator'],
  ]);
  expect(refusal(await viewer.api.get('/api/v1/members'))).toEqual([403, 'FORBIDDEN', 'role owner, admin']);
});

describe('a change of role', () => {
  test('applies to the next access token, and is recorded', async () => {
    const operator = await memberWith('operator');
    expect((await change(owner, operator.userId, 'viewer')).body).toMatchObject({ role: 'viewer' });
    const { body } = await logIn(gateway, operator.email);
    expect(body.user).toMatchObject({ role: 'viewer' });
    expect(await eventsOf('member.role.changed')).toEqual([
      {
        actor_email: owner.email,
        user_id: operator.userId,
        email: operator.email,
        from: 'operator',
        to: 'viewer',
      },
    ]);
  });

  test('applies to an access token that is already issued, for an isolate that knows it after 30 s', async () => {
    const { login, userId } = await memberWith('admin');
    const settings = { SERVICE_NAME: 'branchgate', BASE_URL: 'http://127.0.0.1', JWT_KEYS: [KEY] };
    const claims = unwrap(await verifyOwnToken(settings, 'access', login.access_token ?? '', new Date()));
    const identity = {
      issuer: settings.BASE_URL,
      gid: claims.sub,
      email: claims.email,
      role: claims.role,
      scopes: claims.scp,
      service: settings.SERVICE_NAME,
      tenantId: claims.tenant_id,
      issuedAt: new Date(claims.iat * 1000),
      expiresAt: new Date(claims.exp * 1000),
      sessionId: claims.sid,
    };
    const start = Date.now();
    const roleAfter = async (seconds: number) =>
      unwrap(await materialize(gateway.database, identity, new Date(start + seconds * 1000))).role;
    expect(await roleAfter(0)).toBe('admin');
    await change(owner, userId, 'viewer');
    expect(await roleAfter(30)).toBe('viewer');
    await remove(owner, userId);
    expect(await roleAfter(59)).toBe('viewer');
    await expect(roleAfter(60)).rejects.toThrow('session_ended');
    const now = new Date(start + 60_000);
    expect(await currentAccountRole(openDatabase(gateway.database), identity, now)).toEqual({
      ok: false,
      failure: rejection('session_ended'),
    });
  });

  test('of the last owner is refused, as is the removal, also concurrently', async () => {
    expect(refusal(await change(owner, owner.userId, 'admin'))).toEqual([409, 'LAST_OWNER']);
    expect(refusal(await remove(owner, owner.userId))).toEqual([409, 'LAST_OWNER']);
    const second = await newMember(owner, gateway, `second-${count}@example.com`, 'owner');
    // The isolate knows both as owners from here on, so that only D1 can refuse.
    for (const { api } of [owner, second]) expect((await api.get('/api/v1/members')).status).toBe(200);
    const both = await Promise.all([
      change(owner, second.userId, 'viewer'),
      change(second, owner.userId, 'viewer'),
      remove(owner, second.userId),
    ]);
    const { results } = await gateway.database
      .prepare(
        'select count(*) as owners from accounts where tenant_id = (select tenant_id from accounts where email = ?) and role = ?',
      )
      .bind(owner.email, 'owner')
      .all();
    expect(both.map(({ status }) => status)).toContain(409);
    expect(results).toEqual([{ owners: 1 }]);
  });

  test('to or of an owner takes an owner', async () => {
    const admin = await memberWith('admin');
    const refused = [403, 'FORBIDDEN', 'role owner'];
    expect(refusal(await change(admin, admin.userId, 'owner'))).toEqual(refused);
    expect(refusal(await change(admin, owner.userId, 'viewer'))).toEqual(refused);
    expect(refusal(await remove(admin, owner.userId))).toEqual(refused);
    const invitation = { email: 'ally@example.com', role: 'owner' };
    expect(refusal(await admin.api.post('/api/v1/invitations', invitation))).toEqual(refused);
  });
});

test('the session of an account counts in its own tenant only', async () => {
  const stranger = await newOwner(gateway, `tenant-${count}@example.com`);
  const tenantOf = async ({ api }: TestPerson) =>
    (await api.get<{ tenant_id: string }>('/api/v1/me')).body.tenant_id;
  const { sub: gid = '', sid } = decodeJwt(owner.login.access_token ?? '');
  const roleIn = async (tenantId: string | null) => {
    const identity = { ...IDENTITY, gid, sessionId: String(sid), tenantId };
    return currentAccountRole(openDatabase(gateway.database), identity, new Date());
  };
  expect(await roleIn(await tenantOf(owner))).toEqual({ ok: true, value: 'owner' });
  for (const other of [await tenantOf(stranger), null])
    expect(await roleIn(other)).toEqual({ ok: false, failure: rejection('session_ended') });
});

describe('a removal', () => {
  test('ends sessions, account and invitations of the member immediately, and is recorded', async () => {
    const admin = await memberWith('admin');
    await admin.api.post('/api/v1/invitations', { email: `ally-${count}@example.com`, role: 'admin' });
    const other = await logIn(gateway, admin.email);
    expect((await remove(owner, admin.userId)).status).toBe(204);
    expect(refusal(await renew(admin))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    // This token has not been used before, so no isolate knows it.
    const unused = new Api(gateway.url, other.body.access_token);
    expect(refusal(await unused.get('/api/v1/projects'))).toEqual([401, 'UNAUTHENTICATED']);
    expect(refusal(await logIn(gateway, admin.email))).toEqual([401, 'CREDENTIALS_WRONG']);
    expect(await listed(owner)).toEqual([['owner', 'owner']]);
    const { body } = await owner.api.get('/api/v1/invitations');
    expect(body).toMatchObject({ invitations: [] });
    expect(await eventsOf('member.removed')).toMatchObject([{ email: admin.email, role: 'admin' }]);
    expect(refusal(await remove(owner, admin.userId))).toEqual([404, 'NOT_FOUND']);
  });

  test('ends the codes that its address has open, also for an account that comes later', async () => {
    const viewer = await memberWith('viewer');
    const { challenge_id } = (await askMagicLink(gateway, viewer.email)).body;
    const code = readCode(await mailTo(gateway, viewer.email, 2));
    expect((await remove(owner, viewer.userId)).status).toBe(204);
    const invitation = { email: viewer.email, role: 'admin' };
    const { body: invited } = await owner.api.post<{ id: string }>('/api/v1/invitations', invitation);
    const invitationCode = readCode(await mailTo(gateway, viewer.email, 3));
    expect((await accept(gateway, viewer.email, invited.id, invitationCode)).status).toBe(200);
    expect(refusal(await verifyCode(gateway, viewer.email, challenge_id, code))).toEqual([401, 'CODE_WRONG']);
  });

  test('of a member of another tenant is unknown, and so is any change', async () => {
    const stranger = await newOwner(gateway, `stranger-${count}@example.com`);
    const known = gateway.mails().filter(({ to }) => to === owner.email).length;
    const { challenge_id } = (await askMagicLink(gateway, owner.email)).body;
    const code = readCode(await mailTo(gateway, owner.email, known + 1));
    expect(refusal(await remove(stranger, owner.userId))).toEqual([404, 'NOT_FOUND']);
    expect(refusal(await change(stranger, owner.userId, 'viewer'))).toEqual([404, 'NOT_FOUND']);
    expect(await listed(stranger)).toEqual([['stranger', 'owner']]);
    expect((await verifyCode(gateway, owner.email, challenge_id, code)).status).toBe(200);
  });
});

test('users of the identity provider are managed there', async () => {
  const token = await signer.token({
    gid: 'g-1',
    email: 'edsger@example.com',
    role: 'owner',
    scp: ['branchgate:read', 'branchgate:write'],
    exp: new Date(Date.now() + 600_000).toISOString(),
    ctx: { tenant_id: 'acme' },
  });
  const api = new Api(gateway.url, token);
  const { body: me } = await api.get('/api/v1/me');
  const managed = [409, 'MANAGED_BY_PROVIDER'];
  const password = { current_password: 'any', new_password: 'another password' };
  expect((await api.get('/api/v1/members')).body).toMatchObject({ members: [{ id: me.id, role: 'owner' }] });
  for (const response of [
    await api.patch(`/api/v1/members/${me.id}`, { role: 'viewer' }),
    await api.delete(`/api/v1/members/${me.id}`),
    await api.post('/api/v1/invitations', { email: 'x@example.com', role: 'viewer' }),
    await api.post('/api/v1/auth/password', password),
    await api.delete('/api/v1/auth/sessions'),
    await api.delete(`/api/v1/auth/sessions/${crypto.randomUUID()}`),
  ]) {
    expect(refusal(response)).toEqual(managed);
  }
  expect((await api.get('/api/v1/auth/sessions')).body).toMatchObject({ sessions: [] });
});

const KEY = { id: '1', bytes: new Uint8Array(32) };

const IDENTITY = {
  issuer: 'http://127.0.0.1',
  email: 'owner@example.com',
  role: 'owner',
  scopes: [],
  service: 'branchgate',
  issuedAt: new Date(),
  expiresAt: new Date(),
};
