import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type PreAuth, signOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import {
  appCode,
  enrolledAccount,
  refusal,
  type SecondStep,
  stepAfterPassword,
  stepOf,
} from '../../support/sign-in/second-step.ts';
import { otherCode, signUp } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

let gateway: SignInGateway;
let email: string;

beforeAll(async () => {
  gateway = await startSignInGateway();
});
afterAll(() => gateway.stop());

let accounts = 0;
beforeEach(() => {
  accounts += 1;
  email = `ada-${accounts}@example.com`;
});

async function auditRows(name: string) {
  const { results } = await gateway.database
    .prepare('select actor_id, metadata from audit_events where actor_email = ? and name = ? order by rowid')
    .bind(email, name)
    .all<{ actor_id: string | null; metadata: string }>();
  return results.map(({ actor_id, metadata }) => ({ actor_id, metadata: JSON.parse(metadata) }));
}

const isAccepted = async (token: string | null) =>
  (await new Api(gateway.url, token).get('/api/v1/projects')).status === 200;

const lifetime = (token: string) => {
  const { iat = 0, exp = 0 } = decodeJwt(token);
  return exp - iat;
};

const fullTokens = () => ({
  access_token: expect.any(String),
  refresh_token: expect.any(String),
  pre_auth_token: null,
  requires_2fa: false,
  requires_2fa_setup: false,
  method: null,
  user: { id: expect.any(String), email, role: 'owner' },
});

test('a sign-up, the enrolment of an app, and a login with its code', async () => {
  await signUp(gateway, email);
  const setUp = await stepAfterPassword(gateway, email);
  expect(setUp.login).toEqual({
    access_token: null,
    refresh_token: null,
    pre_auth_token: expect.any(String),
    requires_2fa: false,
    requires_2fa_setup: true,
    method: null,
    user: null,
  });
  expect(lifetime(setUp.token)).toBe(60 * 60);

  const { status, headers, body } = await setUp.setUp();
  expect(status).toBe(200);
  expect(headers.get('cache-control')).toBe('no-store');
  expect(body).toEqual({
    secret: expect.stringMatching(/^[A-Z2-7]{32}$/),
    totp_uri: expect.stringContaining('otpauth://totp/branchgate:'),
    method: 'totp',
  });
  expect(new URL(body.totp_uri).searchParams.get('secret')).toBe(body.secret);
  expect((await setUp.setUp()).body).toEqual(body);

  const enrolled = await setUp.verifySetUp(appCode(body.secret));
  expect(enrolled.status).toBe(200);
  expect(enrolled.headers.get('cache-control')).toBe('no-store');
  expect(enrolled.body).toEqual({ ...fullTokens(), recovery_codes: expect.any(Array) });
  expect(await isAccepted(enrolled.body.access_token)).toBe(true);

  const login = await stepAfterPassword(gateway, email);
  expect(login.login).toEqual({
    access_token: null,
    refresh_token: null,
    pre_auth_token: expect.any(String),
    requires_2fa: true,
    requires_2fa_setup: false,
    method: 'totp',
    user: null,
  });
  expect(lifetime(login.token)).toBe(5 * 60);
  const verified = await login.verifyLogin(appCode(body.secret, 1));
  expect(verified.status).toBe(200);
  expect(verified.headers.get('cache-control')).toBe('no-store');
  expect(verified.body).toEqual(fullTokens());
  expect(await isAccepted(verified.body.access_token)).toBe(true);

  const actor_id = verified.body.user?.id;
  expect(await auditRows('second_factor.enrolled')).toEqual([{ actor_id, metadata: { method: 'totp' } }]);
  const byPassword = { first_factor: 'password', second_factor: 'totp' };
  expect((await auditRows('sign_in.succeeded')).slice(1)).toEqual([
    { actor_id, metadata: byPassword },
    { actor_id, metadata: byPassword },
  ]);
  const { results } = await gateway.database.prepare('select * from second_factors').all();
  expect(results.length).toBeGreaterThan(0);
  expect(JSON.stringify(results)).not.toContain(body.secret);
});

describe('a code of the app', () => {
  test('is refused after it has enrolled the app', async () => {
    const { usedCode } = await enrolledAccount(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    expect(refusal(await step.verifyLogin(usedCode))).toEqual([401, 'CODE_WRONG']);
  });

  test.each([
    ['with two pre-auth tokens', 2],
    ['with one pre-auth token', 1],
  ])('submitted twice concurrently is accepted once, %s', async (_case, tokens) => {
    const { secret } = await enrolledAccount(gateway, email);
    const one = await stepAfterPassword(gateway, email);
    const other = tokens === 1 ? one : await stepAfterPassword(gateway, email);
    const code = appCode(secret, 1);
    const responses = await Promise.all([one.verifyLogin(code), other.verifyLogin(code)]);
    expect(responses.map(({ status }) => status).sort()).toEqual([200, 401]);
  });

  test('is refused for an enrolment token, before and after an enrolment', async () => {
    await signUp(gateway, email);
    const [early, step] = [await stepAfterPassword(gateway, email), await stepAfterPassword(gateway, email)];
    const { secret } = (await step.setUp()).body;
    const refused = [403, 'FORBIDDEN', 'second factor'];
    expect(refusal(await early.verifyLogin(appCode(secret)))).toEqual(refused);
    expect((await step.verifySetUp(appCode(secret))).status).toBe(200);
    expect(refusal(await early.verifyLogin(appCode(secret, 1)))).toEqual(refused);
  });

  test('consists of six digits', async () => {
    await signUp(gateway, email);
    const api = new Api(gateway.url, (await stepAfterPassword(gateway, email)).token);
    for (const code of ['28708', '2870820', '28708a', '２８７０８２', 287082, null]) {
      for (const name of ['verify-setup', 'verify-login']) {
        const response = await api.post(`/api/v1/auth/2fa/${name}`, { code });
        expect(refusal(response), `${code}`).toEqual([422, 'VALIDATION_FAILED']);
      }
    }
  });
});

describe('wrong codes', () => {
  test('five of 100 concurrent codes are evaluated, and then the token is refused with the right code', async () => {
    const { secret } = await enrolledAccount(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const right = appCode(secret, 1);
    const guesses = Array.from({ length: 100 }, (_, n) => String(n).padStart(6, '0')).filter(
      (guess) => ![0, 1, 2, 3].some((ahead) => guess === appCode(secret, ahead - 1)),
    );
    const responses = await Promise.all(guesses.map((guess) => step.verifyLogin(guess)));
    expect(new Set(responses.map((response) => refusal(response).join(' ')))).toEqual(
      new Set(['401 CODE_WRONG']),
    );
    expect(refusal(await step.verifyLogin(right))).toEqual([401, 'CODE_WRONG']);
    await eventually(async () => expect(await auditRows('sign_in.failed')).toHaveLength(5));
    expect(await auditRows('sign_in.failed')).toContainEqual({
      actor_id: null,
      metadata: { first_factor: 'password', step: 'second_factor' },
    });

    const next = await stepAfterPassword(gateway, email);
    expect((await next.verifyLogin(right)).status).toBe(200);
    expect(await auditRows('sign_in.failed')).toHaveLength(5);
  });

  test('are counted during the enrolment too', async () => {
    await signUp(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const { secret } = (await step.setUp()).body;
    const wrong = otherCode(appCode(secret, 3));
    for (let n = 0; n < 5; n++) await step.verifySetUp(wrong);
    expect(refusal(await step.verifySetUp(appCode(secret)))).toEqual([401, 'CODE_WRONG']);
    expect((await stepAfterPassword(gateway, email)).login.requires_2fa_setup).toBe(true);
  });

  test('are limited to 30 per hour for a user; right codes are not counted', async () => {
    const { secret } = await enrolledAccount(gateway, email);
    const wrong = otherCode(appCode(secret, 3));
    const guess = async (times: number) => {
      const step = await stepAfterPassword(gateway, email);
      const responses = await Promise.all(Array.from({ length: times }, () => step.verifyLogin(wrong)));
      expect(responses.map(({ status }) => status)).toEqual(Array(times).fill(401));
    };
    const { user } = decodeJwt<PreAuth>((await stepAfterPassword(gateway, email)).token);
    await gateway.consume(bucketOf.wrongSecondFactor(user), 25);
    await guess(4);
    const right = await stepAfterPassword(gateway, email);
    expect((await right.verifyLogin(appCode(secret, 1))).status).toBe(200);
    await guess(1);
    const step = await stepAfterPassword(gateway, email);
    const response = await step.verifyLogin(appCode(secret, 1));
    expect(refusal(response)).toEqual([429, 'RATE_LIMITED']);
    expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(3000);
    // The rate-limit headers report the request's own limit.
    expect(response.headers.get('x-ratelimit-limit')).toBe('100000');
  });
});

describe('enrolment', () => {
  test('succeeds once for two concurrent requests', async () => {
    await signUp(gateway, email);
    const steps = await Promise.all([1, 2].map(() => stepAfterPassword(gateway, email)));
    const secrets = await Promise.all(steps.map(async (step) => (await step.setUp()).body.secret));
    expect(secrets[0]).not.toBe(secrets[1]);
    const responses = await Promise.all(steps.map((step, n) => step.verifySetUp(appCode(secrets[n] ?? ''))));
    expect(responses.map(refusal).sort()).toEqual([
      [200, undefined],
      [403, 'SECOND_FACTOR_ENROLLED'],
    ]);
    expect(await auditRows('second_factor.enrolled')).toHaveLength(1);

    const winner = secrets[responses.findIndex(({ status }) => status === 200)] ?? '';
    const login = await stepAfterPassword(gateway, email);
    expect((await login.verifyLogin(appCode(winner, 1))).status).toBe(200);
  });

  test('cannot be repeated or skipped with an earlier token or with a token of a login', async () => {
    await signUp(gateway, email);
    const [before, step] = [await stepAfterPassword(gateway, email), await stepAfterPassword(gateway, email)];
    const { secret } = (await before.setUp()).body;
    expect((await step.verifySetUp(appCode((await step.setUp()).body.secret))).status).toBe(200);
    const login = await stepAfterPassword(gateway, email);
    const expectRefused = async (late: SecondStep) => {
      expect(refusal(await late.setUp())).toEqual([403, 'SECOND_FACTOR_ENROLLED']);
      expect(refusal(await late.verifySetUp(appCode(secret)))).toEqual([403, 'SECOND_FACTOR_ENROLLED']);
      expect(refusal(await late.skip())).toEqual([403, 'SECOND_FACTOR_REQUIRED']);
    };
    await expectRefused(before);
    await expectRefused(login);

    // The operator deletes the factor, which takes effect at the next login.
    const { user } = decodeJwt<PreAuth>(login.token);
    await gateway.database.prepare('delete from second_factors where gid = ?').bind(user.gid).run();
    await expectRefused(login);
    expect(refusal(await login.verifyLogin('000000'))).toEqual([403, 'FORBIDDEN', 'second factor']);
    expect((await stepAfterPassword(gateway, email)).login.requires_2fa_setup).toBe(true);
  });

  test('is skipped until the next login, and the token is then used up', async () => {
    await signUp(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const skipped = await step.skip();
    expect(skipped.status).toBe(200);
    expect(skipped.headers.get('cache-control')).toBe('no-store');
    expect(skipped.body).toEqual(fullTokens());
    expect((await auditRows('sign_in.succeeded')).at(-1)?.metadata).toEqual({
      first_factor: 'password',
      second_factor: 'skipped',
    });

    expect(refusal(await step.skip())).toEqual([401, 'UNAUTHENTICATED']);
    const { secret } = (await step.setUp()).body;
    expect(refusal(await step.verifySetUp(appCode(secret)))).toEqual([401, 'UNAUTHENTICATED']);
    expect((await stepAfterPassword(gateway, email)).login.requires_2fa_setup).toBe(true);
  });
});

describe('the pre-auth token', () => {
  test('completes one sign-in, even for concurrent requests', async () => {
    await signUp(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const responses = await Promise.all(Array.from({ length: 10 }, () => step.skip()));
    expect(responses.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(responses.filter(({ status }) => status === 401)).toHaveLength(9);
  });

  test('is accepted for the second step only, which accepts no other token', async () => {
    const { login } = await enrolledAccount(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    for (const path of ['/api/v1/projects', '/api/v1/me', '/api/v1/audit-events']) {
      expect(refusal(await new Api(gateway.url, step.token).get(path))).toEqual([401, 'UNAUTHENTICATED']);
    }
    for (const token of [login.access_token, login.refresh_token, null]) {
      const api = new Api(gateway.url, token);
      for (const name of ['setup', 'skip', 'email', 'verify-setup', 'verify-login']) {
        const body = name.startsWith('verify') ? { code: '000000' } : undefined;
        const response = await api.post(`/api/v1/auth/2fa/${name}`, body);
        expect(refusal(response)).toEqual([401, 'UNAUTHENTICATED']);
      }
    }
  });

  test('expires', async () => {
    await signUp(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const claims = decodeJwt<PreAuth>(step.token);
    const [id = '', key = ''] = SETTINGS.JWT_KEYS.split(':');
    const settings = {
      ...SETTINGS,
      SERVICE_NAME: 'branchgate',
      JWT_KEYS: [{ id, bytes: Buffer.from(key, 'base64') }],
    };
    const signed = async (seconds: number) => {
      const expiresAt = new Date(Date.now() + seconds * 1000);
      const token = await signOwnToken(settings, 'pre_auth', claims, { issuedAt: new Date(), expiresAt });
      return stepOf(gateway, { ...step.login, pre_auth_token: token });
    };
    expect(refusal(await (await signed(-1)).skip())).toEqual([401, 'UNAUTHENTICATED']);
    expect((await (await signed(60)).skip()).status).toBe(200);
  });
});
