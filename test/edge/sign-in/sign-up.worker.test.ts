import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { accept, personOf } from '../../support/sign-in/people.ts';
import { expectSameAnswer } from '../../support/sign-in/same-response.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { logIn, mailTo, readCode } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

const CLOSED = [403, 'SIGN_UP_CLOSED'];

interface TenantBody {
  tenant_id: string;
  name: string;
  invitation: { id: string; email: string; role: string };
}

let gateway: SignInGateway;
const start = (settings: Record<string, string | undefined>) => async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: undefined, ...settings });
};
const platform = () => new Api(gateway.url, PLATFORM_SECRET);
const createTenant = (tenant_id: string, owner_email: string) =>
  platform().post<TenantBody>('/platform/v1/tenants', { tenant_id, name: 'Acme Ltd.', owner_email });

/** Both get the same answer. */
const signUpsOf = (known: string, unknown: string) => {
  const signUp = (email: string) =>
    new Api(gateway.url, null).post('/api/v1/auth/signup', {
      name: 'Eve',
      email,
      password: 'a password of eve',
    });
  return expectSameAnswer(signUp(known), signUp(unknown));
};

/** The first owner of a tenant of the operator. */
async function firstOwner(tenantId: string, email: string) {
  const { status, body } = await createTenant(tenantId, email);
  expect([status, body.tenant_id, body.name]).toEqual([201, tenantId, 'Acme Ltd.']);
  expect(body.invitation).toMatchObject({ email, role: 'owner' });
  const accepted = await accept(gateway, email, body.invitation.id, readCode(await mailTo(gateway, email)));
  expect(accepted.status).toBe(200);
  return personOf(gateway, email, accepted.body);
}

describe('by default', () => {
  beforeAll(start({ SIGN_UP: undefined }));
  afterAll(() => gateway.stop());

  test('a sign-up is refused equally for known and unknown addresses, before any work', async () => {
    await firstOwner('known', 'known@example.com');
    const mails = gateway.mails().length;
    const answer = await signUpsOf('known@example.com', 'unknown@example.com');
    expect(refusal(answer)).toEqual(CLOSED);
    expect(gateway.mails()).toHaveLength(mails);
  });

  test('the first owner of a tenant invites others, and the caps are those of tenants', async () => {
    const owner = await firstOwner('acme', 'ada@example.com');
    expect((await owner.api.get('/api/v1/me')).body).toMatchObject({ tenant_id: 'acme', role: 'owner' });
    const invited = await owner.api.post<{ id: string }>('/api/v1/invitations', {
      email: 'grace@example.com',
      role: 'viewer',
    });
    expect(invited.status).toBe(201);
    const code = readCode(await mailTo(gateway, 'grace@example.com'));
    expect((await accept(gateway, 'grace@example.com', invited.body.id, code)).status).toBe(200);
    const { body } = await platform().call('PUT', '/platform/v1/tenants/acme/caps', { body: {} });
    expect(body).toMatchObject({ project_limit: 10, storage_quota_limit_gib: 20 });
    const log = await owner.api.get<{ audit_events: { name: string }[] }>('/api/v1/audit-events');
    expect(log.body.audit_events.map(({ name }) => name)).toEqual(
      expect.arrayContaining(['tenant.created', 'invitation.created', 'invitation.accepted']),
    );
    expect(refusal(await createTenant('acme', 'eve@example.com'))).toEqual([409, 'TENANT_EXISTS']);
  });

  test('a repeated request keeps an open invitation, and replaces one to another address', async () => {
    const first = await createTenant('repeated', 'first@example.com');
    const code = readCode(await mailTo(gateway, 'first@example.com'));
    const again = await createTenant('repeated', 'first@example.com');
    expect(again.body.invitation).toEqual(first.body.invitation);
    expect(gateway.mails().filter(({ to }) => to === 'first@example.com')).toHaveLength(1);
    const corrected = await createTenant('repeated', 'right@example.com');
    expect(corrected.status).toBe(201);
    const late = await accept(gateway, 'first@example.com', first.body.invitation.id, code);
    expect(refusal(late)).toEqual([401, 'CODE_WRONG']);
    const rightCode = readCode(await mailTo(gateway, 'right@example.com'));
    const right = await accept(gateway, 'right@example.com', corrected.body.invitation.id, rightCode);
    expect([right.status, right.body.user?.role]).toEqual([200, 'owner']);
  });

  test('without an identity provider of its own, the gateway refuses its tokens and its sign-ins', async () => {
    const api = new Api(gateway.url, null);
    const without = [404, 'NO_IDENTITY_PROVIDER'];
    expect(refusal(await api.get('/api/v1/auth/idp/login'))).toEqual(without);
    const start = {
      redirect_uri: 'http://127.0.0.1:9/auth/callback',
      state: 'state',
      code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
      code_challenge_method: 'S256',
    };
    const cli = await api.post<{ authorization_url: string }>('/api/v1/auth/cli/start', start);
    expect(new URL(cli.body.authorization_url).pathname).toBe('/sign-in');
    const foreign = { refresh_token: 'of a provider' };
    expect(refusal(await api.post('/api/v1/auth/refresh', foreign))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    const paseto = new Api(gateway.url, `v4.public.${'A'.repeat(120)}`);
    expect(refusal(await paseto.get('/api/v1/projects'))).toEqual([401, 'UNAUTHENTICATED']);
    expect(refusal(await logIn(gateway, 'nobody@example.com'))).toEqual([401, 'CREDENTIALS_WRONG']);
  });
});

describe('SIGN_UP=off', () => {
  beforeAll(start({ SIGN_UP: 'off' }));
  afterAll(() => gateway.stop());

  const guessed = (email: string) =>
    new Api(gateway.url, null).post('/api/v1/auth/invitations/accept', {
      email,
      invitation_id: randomUUID(),
      code: '123456',
      name: 'Eve',
      password: 'a password of eve',
    });

  test('every route that makes an account is closed, but for the first owner of the operator', async () => {
    const owner = await firstOwner('acme', 'ada@example.com');
    const signUps = signUpsOf('ada@example.com', 'eve@example.com');
    const invitations = expectSameAnswer(
      owner.api.post('/api/v1/invitations', { email: 'ada@example.com', role: 'viewer' }),
      owner.api.post('/api/v1/invitations', { email: 'eve@example.com', role: 'viewer' }),
    );
    const acceptances = expectSameAnswer(guessed('ada@example.com'), guessed('eve@example.com'));
    const answers = await Promise.all([signUps, invitations, acceptances]);
    expect(answers.map(refusal)).toEqual([CLOSED, CLOSED, CLOSED]);
    expect((await logIn(gateway, 'ada@example.com')).status).toBe(200);
  });

  test('a member whose invitation was sent before is not accepted any more', async () => {
    const owner = await firstOwner('earlier', 'owner@example.com');
    const { body } = await createTenant('other', 'grace@example.com');
    const code = readCode(await mailTo(gateway, 'grace@example.com'));
    await gateway.database.batch([
      gateway.database
        .prepare(
          "insert into invitations select id, 'earlier', email, 'viewer', ?, expires_at, created_at from owner_invitations where id = ?",
        )
        .bind(owner.userId, body.invitation.id),
      gateway.database.prepare('delete from owner_invitations where id = ?').bind(body.invitation.id),
    ]);
    expect(refusal(await accept(gateway, 'grace@example.com', body.invitation.id, code))).toEqual(CLOSED);
  });
});
