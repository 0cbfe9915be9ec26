import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api } from '../../support/api.ts';
import { expectSameAnswer } from '../../support/sign-in/same-response.ts';
import { refusal, stepOf } from '../../support/sign-in/second-step.ts';
import {
  askMagicLink,
  logIn,
  mailTo,
  otherCode,
  PASSWORD,
  readCode,
  signUp,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const NEW = 'staple a new battery';
const WRONG = [401, 'CODE_WRONG'];
const REFUSED = [401, 'CREDENTIALS_WRONG'];

let gateway: SignInGateway;
let anybody: Api;
let email: string;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway();
  anybody = new Api(gateway.url, null);
});
afterAll(() => gateway.stop());
beforeEach(() => {
  count += 1;
  email = `ada-${count}@example.com`;
});

const askReset = (address = email) =>
  anybody.post<{ challenge_id: string }>('/api/v1/auth/password/reset/start', { email: address });
const reset = (challenge_id: string, code: string, address = email, new_password = NEW) =>
  anybody.post('/api/v1/auth/password/reset', { email: address, challenge_id, code, new_password });
const change = (token: string | null, current_password: string, new_password = NEW) =>
  new Api(gateway.url, token).post('/api/v1/auth/password', { current_password, new_password });
const renew = (refresh_token: string | null) => anybody.post('/api/v1/auth/refresh', { refresh_token });

/** A mailed code for a new password. @param number of the mail to the address, counted from 1 */
async function resetCode(number = 2) {
  const { challenge_id } = (await askReset()).body;
  return { id: challenge_id, code: readCode(await mailTo(gateway, email, number)) };
}

describe('a password reset', () => {
  test('sets the password, and ends the sessions and the sign-ins that have begun', async () => {
    const { access_token, refresh_token } = await signUp(gateway, email);
    const begun = stepOf(gateway, (await logIn(gateway, email)).body);
    const { id, code } = await resetCode();
    expect((await reset(id, code)).status).toBe(204);
    expect(refusal(await renew(refresh_token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    expect(refusal(await new Api(gateway.url, access_token).get('/api/v1/me'))).toEqual([
      401,
      'UNAUTHENTICATED',
    ]);
    // An attacker who knew the old password could otherwise finish the sign-in within the hour.
    expect(refusal(await begun.skip())).toEqual([401, 'UNAUTHENTICATED']);
    expect(refusal(await logIn(gateway, email))).toEqual(REFUSED);
    expect((await logIn(gateway, email, NEW)).status).toBe(200);
    expect(refusal(await reset(id, code))).toEqual(WRONG);
    const select =
      "select actor_email from audit_events where name = 'account.password.reset' and actor_email = ?";
    const { results } = await gateway.database.prepare(select).bind(email).all();
    expect(results).toHaveLength(1);
  });

  test('of an unknown address gets the same responses, and no mail', async () => {
    await signUp(gateway, email);
    const known = await askReset();
    const unknown = await askReset(`x-${email}`);
    expect([unknown.status, Object.keys(unknown.body)]).toEqual([known.status, Object.keys(known.body)]);
    const code = readCode(await mailTo(gateway, email, 2));
    const response = await expectSameAnswer(
      reset(known.body.challenge_id, otherCode(code)),
      reset(unknown.body.challenge_id, otherCode(code), `x-${email}`),
    );
    expect(refusal(response)).toEqual(WRONG);
    expect(gateway.mails().filter(({ to }) => to === `x-${email}`)).toEqual([]);
  });

  test('evaluates five of eight concurrent guesses, and then refuses the right code', async () => {
    await signUp(gateway, email);
    const { id, code } = await resetCode();
    const guesses = Array.from({ length: 8 }, (_, n) =>
      reset(id, String((Number(code) + 1 + n) % 1_000_000).padStart(6, '0')),
    );
    expect(new Set((await Promise.all(guesses)).map(({ status }) => status))).toEqual(new Set([401]));
    expect(refusal(await reset(id, code))).toEqual(WRONG);
    expect((await logIn(gateway, email)).status).toBe(200);
  });

  test('by two concurrent requests with one code is made once', async () => {
    await signUp(gateway, email);
    const { id, code } = await resetCode();
    const both = await Promise.all([reset(id, code), reset(id, code, email, 'yet another one')]);
    expect(both.map(({ status }) => status).sort()).toEqual([204, 401]);
  });

  test('accepts only its own codes, and its codes are accepted for nothing else', async () => {
    await signUp(gateway, email);
    const { id, code } = await resetCode();
    const link = (await askMagicLink(gateway, email)).body.challenge_id;
    const linkCode = readCode(await mailTo(gateway, email, 3));
    await signUp(gateway, `x-${email}`);
    expect(refusal(await reset(link, linkCode))).toEqual(WRONG);
    expect(refusal(await reset(id, code, `x-${email}`))).toEqual(WRONG);
    expect(refusal(await verifyCode(gateway, email, id, code))).toEqual(WRONG);
    expect((await reset(id, code)).status).toBe(204);
  });

  test('counts against the limits of codes and mails of a client address', async () => {
    const from = { 'CF-Connecting-IP': '198.51.100.9' };
    await gateway.consume(bucketOf.mailFrom('198.51.100.9'), 200);
    await gateway.consume(bucketOf.wrongCodeFrom('198.51.100.9'), 100);
    const start = await anybody.post('/api/v1/auth/password/reset/start', { email }, from);
    const body = { email, challenge_id: crypto.randomUUID(), code: '123456', new_password: NEW };
    const finish = await anybody.post('/api/v1/auth/password/reset', body, from);
    for (const response of [start, finish]) expect(refusal(response)).toEqual([429, 'RATE_LIMITED']);
  });
});

describe('a change of the password', () => {
  test('takes the current one, keeps its session, and ends the others', async () => {
    const { access_token, refresh_token } = await signUp(gateway, email);
    const other = (await stepOf(gateway, (await logIn(gateway, email)).body).skip()).body;
    expect(refusal(await change(access_token, NEW))).toEqual([403, 'PASSWORD_WRONG']);
    expect((await change(access_token, PASSWORD)).status).toBe(204);
    expect((await renew(refresh_token)).status).toBe(200);
    expect(refusal(await renew(other.refresh_token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    expect(refusal(await logIn(gateway, email))).toEqual(REFUSED);
    expect((await logIn(gateway, email, NEW)).status).toBe(200);
  });

  test('counts wrong passwords as a login does', async () => {
    const { access_token } = await signUp(gateway, email);
    await gateway.consume(bucketOf.wrongPassword(email), 29);
    expect(refusal(await change(access_token, 'wrong password'))).toEqual([403, 'PASSWORD_WRONG']);
    expect(refusal(await change(access_token, PASSWORD))).toEqual([429, 'RATE_LIMITED']);
  });
});
