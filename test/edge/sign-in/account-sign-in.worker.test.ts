import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api, type ApiResponse } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { expectSameAnswer } from '../../support/sign-in/same-response.ts';
import { stepAfterPassword } from '../../support/sign-in/second-step.ts';
import {
  askMagicLink,
  askSignUp,
  type LoginBody,
  mailTo,
  otherCode,
  PASSWORD,
  readCode,
  signUp,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const CHALLENGE = {
  challenge_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
  channel: 'email',
  expires_at: expect.stringMatching(/Z$/),
};

let gateway: SignInGateway;
let email: string;
/** A new one for each test, because wrong passwords are counted by address. */
let clientAddress: string;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
});
afterAll(() => gateway.stop());
beforeEach(() => {
  gateway.setMailStatus(200);
  count += 1;
  email = `ada-${count}@example.com`;
  clientAddress = `192.0.2.${count}`;
});

const post = <B = Record<string, unknown>>(path: string, body: unknown, from = clientAddress) =>
  new Api(gateway.url, null).post<B>(`/api/v1/auth/${path}`, body, { 'CF-Connecting-IP': from });

const logIn = (address: string, password: string, from?: string) =>
  post<LoginBody & Record<string, unknown>>('login', { email: address, password }, from);

const refusal = ({ status, body }: ApiResponse<unknown>) => [status, (body as { error: string }).error];

const mailsTo = (address: string) => gateway.mails().filter(({ to }) => to === address);

const failuresOf = async (address: string) => {
  const select = "select metadata from audit_events where name = 'sign_in.failed' and actor_email = ?";
  const { results } = await gateway.database.prepare(select).bind(address).all<{ metadata: string }>();
  return results.map(({ metadata }) => JSON.parse(metadata));
};

describe('a sign-up', () => {
  test('is completed by the mailed code, and its tokens are accepted', async () => {
    const started = await askSignUp(gateway, email.toUpperCase());
    expect(started.status).toBe(202);
    expect(started.body).toEqual({
      email,
      message: expect.any(String),
      verification: CHALLENGE,
      requires_2fa: false,
      requires_2fa_setup: false,
      method: 'email_otp',
    });
    expect(started.headers.get('Cache-Control')).toBe('no-store');
    const { challenge_id } = started.body.verification;

    const mail = await mailTo(gateway, email);
    const code = readCode(mail);
    expect(mail.html).toContain(code);
    expect(refusal(await verifyCode(gateway, email, challenge_id, otherCode(code)))).toEqual([
      401,
      'CODE_WRONG',
    ]);
    expect(refusal(await verifyCode(gateway, `x-${email}`, challenge_id, code))).toEqual([401, 'CODE_WRONG']);
    const verified = await verifyCode(gateway, email, challenge_id, code);
    expect(verified.status).toBe(200);
    expect(verified.headers.get('Cache-Control')).toBe('no-store');
    expect(verified.body).toEqual({
      access_token: expect.any(String),
      refresh_token: expect.any(String),
      pre_auth_token: null,
      requires_2fa: false,
      requires_2fa_setup: false,
      method: null,
      user: { id: expect.any(String), email, role: 'owner' },
    });
    const api = new Api(gateway.url, verified.body.access_token);
    expect((await api.get('/api/v1/projects')).status).toBe(200);
    expect(refusal(await verifyCode(gateway, email, challenge_id, code))).toEqual([401, 'CODE_WRONG']);

    const loggedIn = await logIn(email, PASSWORD);
    expect(loggedIn.status).toBe(200);
    expect(loggedIn.headers.get('Cache-Control')).toBe('no-store');
    expect(loggedIn.body.user).toEqual(verified.body.user);
    expect((await logIn(email.toUpperCase(), PASSWORD)).status).toBe(200);
  });

  test('creates no account before its code is submitted', async () => {
    await askSignUp(gateway, email);
    await mailTo(gateway, email);
    const response = await expectSameAnswer(logIn(email, PASSWORD), logIn(`x-${email}`, PASSWORD));
    expect(refusal(response)).toEqual([401, 'CREDENTIALS_WRONG']);
    // `invalid_token` would be about a token (RFC 6750).
    expect(response.headers.get('www-authenticate')).toBe('Bearer');
  });

  test('for an address that has an account gets the same response, and its owner another mail', async () => {
    await signUp(gateway, email);
    const fields = ({ status, body }: ApiResponse<object>, address: string) => ({
      status,
      body: { ...body, email: body && (body as { email: string }).email === address, verification: null },
      names: Object.keys((body as { verification: object }).verification),
    });
    const known = await askSignUp(gateway, email, 'another password');
    const unknown = await askSignUp(gateway, `x-${email}`, 'another password');
    expect(fields(known, email)).toEqual(fields(unknown, `x-${email}`));

    const notice = await mailTo(gateway, email, 2);
    expect(notice.text).toContain('you already have an account');
    expect(notice.text).not.toMatch(/\d{6}/);
    // One mail for each request, so that the mails do not reveal the account by their number.
    await mailTo(gateway, `x-${email}`);
    expect([mailsTo(email).length, mailsTo(`x-${email}`).length]).toEqual([2, 1]);
    const { challenge_id } = known.body.verification;
    expect((await verifyCode(gateway, email, challenge_id, '000000')).status).toBe(401);
    expect((await logIn(email, 'another password')).status).toBe(401);
    expect((await logIn(email, PASSWORD)).status).toBe(200);
  });

  test('while the mail server is unavailable is completed later', async () => {
    gateway.setMailStatus(503);
    const { status, body } = await askSignUp(gateway, email);
    expect(status).toBe(202);
    await eventually(async () => expect(mailsTo(email).length).toBeGreaterThanOrEqual(1));
    const refused = mailsTo(email).length;
    gateway.setMailStatus(200);
    const code = readCode(await mailTo(gateway, email, refused + 1));
    expect((await verifyCode(gateway, email, body.verification.challenge_id, code)).status).toBe(200);
  });
});

describe('a magic link', () => {
  test('signs in to an account', async () => {
    await signUp(gateway, email);
    const { status, body, headers } = await askMagicLink(gateway, email);
    expect([status, body]).toEqual([202, CHALLENGE]);
    expect(headers.get('Cache-Control')).toBe('no-store');
    const code = readCode(await mailTo(gateway, email, 2));
    const verified = await verifyCode(gateway, email, body.challenge_id, code);
    expect([verified.status, verified.body.user?.email]).toEqual([200, email]);
  });

  test('to an unknown address gets the same response and no mail', async () => {
    const { status, body } = await askMagicLink(gateway, email);
    expect([status, body]).toEqual([202, CHALLENGE]);
    expect(refusal(await verifyCode(gateway, email, body.challenge_id, '000000'))).toEqual([
      401,
      'CODE_WRONG',
    ]);
    // A mail that was requested later has arrived by now.
    await askSignUp(gateway, `x-${email}`);
    await mailTo(gateway, `x-${email}`);
    expect(mailsTo(email)).toEqual([]);
  });
});

describe('a wrong password', () => {
  test('and an unknown address get the same response; only the account has an audit event', async () => {
    await signUp(gateway, email);
    const response = await expectSameAnswer(
      logIn(email, 'wrong password'),
      logIn(`x-${email}`, 'wrong password'),
    );
    expect(refusal(response)).toEqual([401, 'CREDENTIALS_WRONG']);
    await eventually(async () => expect(await failuresOf(email)).toEqual([{ first_factor: 'password' }]));
    expect(await failuresOf(`x-${email}`)).toEqual([]);
  });

  test('is refused after 30 in an hour, like the right one, from any client address', async () => {
    await signUp(gateway, email);
    await gateway.consume(bucketOf.wrongPassword(email), 25);
    for (let n = 0; n < 6; n++) expect((await logIn(email, PASSWORD)).status).toBe(200);
    const guesses = await Promise.all(Array.from({ length: 8 }, (_, n) => logIn(email, `wrong ${n}`)));
    expect(guesses.map(({ status }) => status).sort()).toEqual([401, 401, 401, 401, 401, 429, 429, 429]);
    const refused = await logIn(email, PASSWORD, '198.51.100.1');
    expect(refusal(refused)).toEqual([429, 'RATE_LIMITED']);
    expect(Number(refused.headers.get('Retry-After'))).toBeGreaterThan(3000);
  });

  test('of an unknown address is refused after 30, like that of a known one', async () => {
    await signUp(gateway, email);
    for (const address of [email, `x-${email}`]) await gateway.consume(bucketOf.wrongPassword(address), 29);
    for (const refused of [
      [401, 'CREDENTIALS_WRONG'],
      [429, 'RATE_LIMITED'],
    ]) {
      const responses = await Promise.all([logIn(email, 'wrong'), logIn(`x-${email}`, 'wrong')]);
      expect(responses.map(refusal)).toEqual([refused, refused]);
    }
  });

  test('is refused after 100 in an hour from one client address, for any account', async () => {
    await signUp(gateway, email);
    await gateway.consume(bucketOf.wrongPasswordFrom(clientAddress), 99);
    expect((await logIn(email, PASSWORD)).status).toBe(200);
    expect((await logIn(`x-${email}`, PASSWORD)).status).toBe(401);
    expect(refusal(await logIn(email, PASSWORD))).toEqual([429, 'RATE_LIMITED']);
    expect((await logIn(email, PASSWORD, '198.51.100.2')).status).toBe(200);
  });
});

test('a client address is limited to 200 sign-ups and magic links per hour', async () => {
  await gateway.consume(bucketOf.mailFrom(clientAddress), 199);
  expect((await post('magic-link/start', { email })).status).toBe(202);
  expect(refusal(await post('magic-link/start', { email }))).toEqual([429, 'RATE_LIMITED']);
  const body = { name: 'Ada', email, password: PASSWORD };
  expect(refusal(await post('signup', body))).toEqual([429, 'RATE_LIMITED']);
  expect((await post('magic-link/start', { email }, '198.51.100.4')).status).toBe(202);
});

describe('a wrong code', () => {
  const guess = (challenge_id: string, code: string, address = email, from?: string) =>
    post('magic-link/verify', { email: address, challenge_id, code }, from);

  test('is refused after 100 in an hour from one client address, for any account; right codes are not counted', async () => {
    await signUp(gateway, email);
    const { body } = await askMagicLink(gateway, email);
    const code = readCode(await mailTo(gateway, email, 2));
    await gateway.consume(bucketOf.wrongCodeFrom(clientAddress), 99);
    expect((await guess(body.challenge_id, code)).status).toBe(200);
    expect((await guess(body.challenge_id, code, `x-${email}`)).status).toBe(401);
    const refused = await guess(body.challenge_id, code);
    expect(refusal(refused)).toEqual([429, 'RATE_LIMITED']);
    expect(Number(refused.headers.get('Retry-After'))).toBeGreaterThan(3000);
    expect((await guess(body.challenge_id, code, email, '198.51.100.3')).status).toBe(401);
  });

  test('is recorded when it was evaluated, and not for an unknown challenge', async () => {
    await signUp(gateway, email);
    const { body } = await askMagicLink(gateway, email);
    const code = readCode(await mailTo(gateway, email, 2));
    for (let n = 0; n < 8; n++) {
      const response = await expectSameAnswer(
        guess(crypto.randomUUID(), code),
        guess(body.challenge_id, otherCode(code)),
      );
      expect(refusal(response)).toEqual([401, 'CODE_WRONG']);
    }
    await logIn(email, 'wrong password');
    await eventually(async () =>
      expect(await failuresOf(email)).toContainEqual({ first_factor: 'password' }),
    );
    expect((await failuresOf(email)).filter(({ first_factor }) => first_factor === 'email')).toHaveLength(5);
  });
});

test('the length of a password is that of its composed form, at a login too', async () => {
  const password = 'e\u0301'.repeat(200);
  await signUp(gateway, email, password);
  expect((await logIn(email, password)).status).toBe(200);
});

describe('a request', () => {
  test.each(['base', 'base_idp', 'branchgate', 'branchgate_idp', 'BranchGate_IDP', 'BASE', undefined])(
    'with the provider %s is accepted',
    async (provider) => {
      expect((await post('login', { email, password: PASSWORD, provider })).status).toBe(401);
    },
  );

  const ADA = { name: 'Ada', email: 'a@example.com', password: PASSWORD };
  const CODE = {
    email: 'a@example.com',
    challenge_id: '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11',
    code: '123456',
  };
  test.each([
    ['login', { email: 'a@example.com' }],
    ['login', { email: 'no address', password: PASSWORD }],
    ['login', { email: 'a@example.com', password: '' }],
    ['login', { email: 'a@example.com', password: 'x'.repeat(257) }],
    ['login', { email: 'a@example.com', password: PASSWORD, provider: 'google' }],
    ['login', { email: 'a@example.com', password: PASSWORD, provider: 'base ' }],
    ['login', { email: 'a@example.com', password: PASSWORD, provider: null }],
    ['login', { email: 'a@example.com', password: PASSWORD, remember: true }],
    ['signup', { ...ADA, password: '1234567' }],
    // Eight characters that are four letters.
    ['signup', { ...ADA, password: 'e\u0301'.repeat(4) }],
    ['signup', { ...ADA, password: 'x'.repeat(257) }],
    ['signup', { ...ADA, name: ' ' }],
    ['signup', { ...ADA, email: `${'x'.repeat(250)}@example.com` }],
    ['signup', { ...ADA, provider: 'other' }],
    ['signup', { ...ADA, role: 'admin' }],
    ['magic-link/start', {}],
    ['magic-link/start', { email: ['a@example.com'] }],
    ['magic-link/start', { email: 'a@example.com', provider: 'base' }],
    ['magic-link/verify', { ...CODE, code: '12345' }],
    ['magic-link/verify', { ...CODE, code: 123456 }],
    ['magic-link/verify', { ...CODE, code: '１２３４５６' }],
    ['magic-link/verify', { ...CODE, challenge_id: 'none' }],
  ])('to %s with %j is refused', async (path, body) => {
    expect(refusal(await post(path, body))).toEqual([422, 'VALIDATION_FAILED']);
  });
});

test('a password is sufficient unless a second factor was enrolled earlier', async () => {
  await signUp(gateway, email);
  const { body } = await logIn(email, PASSWORD);
  expect(body).toMatchObject({ pre_auth_token: null, requires_2fa_setup: false, user: { email } });
  expect((await new Api(gateway.url, body.access_token).get('/api/v1/projects')).status).toBe(200);

  await gateway.database
    .prepare(
      "insert into second_factors (issuer, gid, method, created_at) select 'http://127.0.0.1', id, 'email', 0 from accounts where email = ?",
    )
    .bind(email)
    .run();
  const step = await stepAfterPassword(gateway, email);
  expect(step.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'email' });
  expect(refusal(await step.skip())).toEqual([403, 'SECOND_FACTOR_REQUIRED']);
});
