import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
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
  const [one, other] = [await stepAfterPassword(gateway, email), await stepAfterPassword(gateway, email)];
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
  const [early, step] = [await stepAfterPassword(gateway, email), await stepAfterPassword(gateway, email)];
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
