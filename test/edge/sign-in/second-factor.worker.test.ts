import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type PreAuth, signOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import {
  appCode,
  enrolledAccount,
  refusal,
  type SecondStep,
  stepAfterPassword,
  stepOf,
} from '../../support/sign-in/second-step.ts';
import {
  askMagicLink,
  mailTo,
  otherCode,
  readCode,
  signUp,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
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

  test.each(
    firstByDay<[string, number]>(1, [
      ['with two pre-auth tokens', 2],
      ['with one pre-auth token', 1],
    ]),
  )('submitted twice concurrently is accepted once, %s', async (_case, tokens) => {
    const { secret } = await enrolledAccount(gateway, email);
    const one = await stepAfterPassword(gateway, email);
    const other = tokens === 1 ? one : await stepAfterPassword(gateway, email);
    const code = appCode(secret, 1);
    const responses = await Promise.all([one.verifyLogin(code), other.verifyLogin(code)]);
    expect(responses.map(({ status }) => status).sort()).toEqual([200, 401]);
  });

  test('is refused for an enrolment token, before and after an enrolment', async () => {
    await signUp(gateway, email);
    const early = await stepAfterPassword(gateway, email);
    const step = await stepAfterPassword(gateway, email);
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
  test('five of many concurrent codes are evaluated, and then the token is refused with the right code', async () => {
    const { secret } = await enrolledAccount(gateway, email);
    const step = await stepAfterPassword(gateway, email);
    const right = appCode(secret, 1);
    const guesses = Array.from({ length: IS_NIGHTLY ? 100 : 20 }, (_, n) =>
      String(n).padStart(6, '0'),
    ).filter((guess) => ![0, 1, 2, 3].some((ahead) => guess === appCode(secret, ahead - 1)));
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
    const before = await stepAfterPassword(gateway, email);
    const step = await stepAfterPassword(gateway, email);
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

const WRONG = [401, 'CODE_WRONG'];
const NO_CODE = 'aaaa-bbbb-cccc-dddd';

const step = (address = email) => stepAfterPassword(gateway, address);
const namesOf = async () => {
  const select = 'select name from audit_events where actor_email = ? order by rowid desc limit 2';
  const { results } = await gateway.database.prepare(select).bind(email).all<{ name: string }>();
  return results.map(({ name }) => name);
};

describe('a recovery code', () => {
  test('is one of ten, signs in once, in any spelling, and is stored as a hash', async () => {
    const { recoveryCodes } = await enrolledAccount(gateway, email);
    expect(recoveryCodes).toHaveLength(10);
    for (const code of recoveryCodes) expect(code).toMatch(/^[a-z2-7]{4}(-[a-z2-7]{4}){3}$/);
    const [first = '', second = ''] = recoveryCodes;
    expect((await (await step()).recover(first)).body.user?.email).toBe(email);
    expect(refusal(await (await step()).recover(first))).toEqual(WRONG);
    const { status } = await (await step()).recover(` ${second.replaceAll('-', ' ').toUpperCase()}`);
    expect(status).toBe(200);
    const { results } = await gateway.database.prepare('select * from recovery_codes').all();
    for (const code of recoveryCodes) expect(JSON.stringify(results)).not.toContain(code.replaceAll('-', ''));
    expect((await step()).login.requires_2fa).toBe(true);
  });

  test('submitted twice concurrently is accepted once', async () => {
    const {
      recoveryCodes: [code = ''],
    } = await enrolledAccount(gateway, email);
    const one = await step();
    const other = await step();
    const both = await Promise.all([one.recover(code), other.recover(code)]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 401]);
  });

  test('of another account is refused, and five concurrent guesses use up the token', async () => {
    const {
      recoveryCodes: [mine = ''],
    } = await enrolledAccount(gateway, email);
    const {
      recoveryCodes: [other = ''],
    } = await enrolledAccount(gateway, `x-${email}`);
    expect(refusal(await (await step()).recover(other))).toEqual(WRONG);
    const guessed = await step();
    const guesses = await Promise.all(Array.from({ length: 20 }, () => guessed.recover(NO_CODE)));
    expect(new Set(guesses.map(({ status }) => status))).toEqual(new Set([401]));
    expect(refusal(await guessed.recover(mine))).toEqual(WRONG);
    expect((await (await step()).recover(mine)).status).toBe(200);
  });

  test('is no code of the app, and takes an enrolled factor', async () => {
    const {
      recoveryCodes: [code = ''],
    } = await enrolledAccount(gateway, email);
    expect(refusal(await (await step()).verifyLogin(code))).toEqual([422, 'VALIDATION_FAILED']);
    expect((await (await step()).recover(code, true)).status).toBe(200);
    expect(await namesOf()).toEqual(['sign_in.succeeded', 'second_factor.removed']);
    const next = await step();
    expect(next.login.requires_2fa_setup).toBe(true);
    expect(refusal(await next.recover(code))).toEqual([403, 'FORBIDDEN', 'second factor']);
    expect(
      (
        await gateway.database
          .prepare('select * from recovery_codes where gid = (select id from accounts where email = ?)')
          .bind(email)
          .all()
      ).results,
    ).toEqual([]);
  });
});

test('new recovery codes take a code of the factor, and replace the earlier ones', async () => {
  const {
    secret,
    usedCode,
    recoveryCodes: [old = ''],
  } = await enrolledAccount(gateway, email);
  expect(refusal(await (await step()).replaceCodes(usedCode))).toEqual(WRONG);
  const { status, body } = await (await step()).replaceCodes(appCode(secret, 1));
  expect([status, body.recovery_codes.length, body.user?.email]).toEqual([200, 10, email]);
  expect(await namesOf()).toEqual(['sign_in.succeeded', 'recovery_codes.replaced']);
  expect(refusal(await (await step()).recover(old))).toEqual(WRONG);
  expect((await (await step()).recover(body.recovery_codes[9] ?? '')).status).toBe(200);
});

/** Requests a mail and reads its code. */
async function mailedCode(step: SecondStep): Promise<string> {
  const sent = gateway.mails().filter(({ to }) => to === email).length;
  const { status } = await step.mail();
  if (status !== 202) throw new Error(`2fa/email: ${status}`);
  return readCode(await mailTo(gateway, email, sent + 1));
}

/** Creates an account with the second factor `email`. */
async function enrolByMail() {
  await signUp(gateway, email);
  const step = await stepAfterPassword(gateway, email);
  const { status, body } = await step.verifySetUp(await mailedCode(step));
  if (status !== 200) throw new Error(`verify-setup: ${status}`);
  return body;
}

async function stepAfterMagicLink() {
  const sent = gateway.mails().filter(({ to }) => to === email).length;
  const { body } = await askMagicLink(gateway, email);
  const code = readCode(await mailTo(gateway, email, sent + 1));
  return stepOf(gateway, (await verifyCode(gateway, email, body.challenge_id, code)).body);
}

test('a mailed code enrols the mailbox, and another one signs in', async () => {
  await signUp(gateway, email);
  const setUp = await stepAfterPassword(gateway, email);
  const { status, headers, body } = await setUp.mail();
  expect(status).toBe(202);
  expect(headers.get('cache-control')).toBe('no-store');
  expect(body).toEqual({ channel: 'email', expires_at: expect.stringMatching(/Z$/) });

  const enrolled = await setUp.verifySetUp(readCode(await mailTo(gateway, email, 2)));
  expect(enrolled.status).toBe(200);
  expect(enrolled.body).toMatchObject({ access_token: expect.any(String), user: { email } });
  const { results } = await gateway.database
    .prepare(`select f.method, f.sealed_secret, e.metadata from second_factors f join accounts a on a.id = f.gid
      join audit_events e on e.actor_email = a.email where a.email = ? and e.name = 'second_factor.enrolled'`)
    .bind(email)
    .all();
  expect(results).toEqual([{ method: 'email', sealed_secret: null, metadata: '{"method":"email"}' }]);

  const login = await stepAfterPassword(gateway, email);
  expect(login.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'email' });
  const verified = await login.verifyLogin(await mailedCode(login));
  expect(verified.status).toBe(200);
  expect(verified.body).toMatchObject({ access_token: expect.any(String), user: { email } });
});

test('a mailed code is valid once, for its pre-auth token, until the next code', async () => {
  await enrolByMail();
  const one = await stepAfterPassword(gateway, email);
  const other = await stepAfterPassword(gateway, email);
  const previous = await mailedCode(one);
  const code = await mailedCode(one);
  expect(refusal(await other.verifyLogin(code))).toEqual([401, 'CODE_WRONG']);
  if (previous !== code) expect(refusal(await one.verifyLogin(previous))).toEqual([401, 'CODE_WRONG']);
  const responses = await Promise.all([one.verifyLogin(code), one.verifyLogin(code)]);
  expect(responses.map(({ status }) => status).sort()).toEqual([200, 401]);
});

test('after five wrong codes the mailed code is refused, and a new one too', async () => {
  await enrolByMail();
  const step = await stepAfterPassword(gateway, email);
  const code = await mailedCode(step);
  const responses = await Promise.all(Array.from({ length: 20 }, () => step.verifyLogin(otherCode(code))));
  expect(responses.map(({ status }) => status)).toEqual(Array(20).fill(401));
  expect(refusal(await step.verifyLogin(code))).toEqual([401, 'CODE_WRONG']);
  expect(refusal(await step.verifyLogin(await mailedCode(step)))).toEqual([401, 'CODE_WRONG']);
});

test('a user with an app gets no mail, and a user with a mailbox cannot use an app', async () => {
  await enrolledAccount(gateway, email);
  const withApp = await stepAfterPassword(gateway, email);
  expect(refusal(await withApp.mail())).toEqual([403, 'FORBIDDEN', 'second factor email']);

  email = `other-${email}`;
  await signUp(gateway, email);
  const early = await stepAfterPassword(gateway, email);
  const step = await stepAfterPassword(gateway, email);
  const { secret } = (await step.setUp()).body;
  expect((await step.verifySetUp(await mailedCode(step))).status).toBe(200);
  expect(refusal(await early.mail())).toEqual([403, 'SECOND_FACTOR_ENROLLED']);
  const login = await stepAfterPassword(gateway, email);
  expect(refusal(await login.verifyLogin(appCode(secret)))).toEqual([401, 'CODE_WRONG']);
});

test('after a magic link the second factor cannot be a mail, but an app', async () => {
  await enrolByMail();
  const step = await stepAfterMagicLink();
  expect(step.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'email' });
  const sent = gateway.mails().length;
  expect(refusal(await step.mail())).toEqual([403, 'FORBIDDEN', 'first factor password']);
  expect(gateway.mails()).toHaveLength(sent);
  const other = await stepAfterPassword(gateway, email);
  expect(refusal(await step.verifyLogin(await mailedCode(other)))).toEqual([401, 'CODE_WRONG']);

  email = `app-${email}`;
  const { secret } = await enrolledAccount(gateway, email);
  const linked = await stepAfterMagicLink();
  expect(linked.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'totp' });
  expect((await linked.verifyLogin(appCode(secret, 1))).status).toBe(200);
});
