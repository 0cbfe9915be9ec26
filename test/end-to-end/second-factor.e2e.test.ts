import { expect, inject, test } from 'vitest';
import { Api } from '../support/api.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { appCode, enrolledAccount, stepAfterPassword } from '../support/sign-in/second-step.ts';
import { mailTo, readCode, signUp } from '../support/sign-in/sign-in.ts';
import { readStackFile } from '../support/stack/started-stack.ts';

const { url, devDir } = inject('stack');
const site = { url, mails: () => deliveredMails({ state: readStackFile(devDir) }) };

interface EventsBody {
  audit_events: { name: string; metadata: Record<string, unknown> }[];
}

test('on the local stack: an app is enrolled, its next code signs in, and both are audited', async () => {
  const email = 'second-factor-app@example.com';
  await signUp(site, email);
  const setUp = await stepAfterPassword(site, email);
  const { secret } = (await setUp.setUp()).body;
  expect((await setUp.verifySetUp(appCode(secret))).status).toBe(200);

  const login = await stepAfterPassword(site, email);
  const { status, body } = await login.verifyLogin(appCode(secret, 1));
  expect(status).toBe(200);
  const api = new Api(url, body.access_token);
  const { audit_events } = (await api.get<EventsBody>('/api/v1/audit-events')).body;
  expect(audit_events.map(({ name, metadata }) => ({ name, ...metadata }))).toEqual([
    { name: 'sign_in.succeeded', first_factor: 'password', second_factor: 'totp' },
    { name: 'sign_in.succeeded', first_factor: 'password', second_factor: 'totp' },
    { name: 'second_factor.enrolled', method: 'totp' },
    { name: 'sign_in.succeeded', first_factor: 'email', second_factor: null },
    { name: 'account.created' },
  ]);
});

test('on the local stack: a recovery code signs in once, and removes a lost app', async () => {
  const email = 'second-factor-lost@example.com';
  const { recoveryCodes } = await enrolledAccount(site, email);
  const [code = ''] = recoveryCodes;
  expect((await (await stepAfterPassword(site, email)).recover(code, true)).status).toBe(200);
  const next = await stepAfterPassword(site, email);
  expect(next.login.requires_2fa_setup).toBe(true);
});

test('on the local stack: a mailed code is a second factor', async () => {
  const email = 'second-factor-mail@example.com';
  await signUp(site, email);
  const setUp = await stepAfterPassword(site, email);
  expect((await setUp.mail()).status).toBe(202);
  expect((await setUp.verifySetUp(readCode(await mailTo(site, email, 2)))).status).toBe(200);
  const login = await stepAfterPassword(site, email);
  expect(login.login.method).toBe('email');
  expect((await login.mail()).status).toBe(202);
  expect((await login.verifyLogin(readCode(await mailTo(site, email, 3)))).status).toBe(200);
});
