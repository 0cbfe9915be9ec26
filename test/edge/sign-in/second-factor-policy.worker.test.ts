import { afterAll, beforeAll, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { appCode, refusal, stepAfterPassword, stepOf } from '../../support/sign-in/second-step.ts';
import { askSignUp, mailTo, readCode, verifyCode } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const EMAIL = 'ada@example.com';

let gateway: SignInGateway;
beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'required' });
});
afterAll(() => gateway.stop());

test('a required enrolment cannot be skipped, and a mail is no second factor after a mail', async () => {
  const { body } = await askSignUp(gateway, EMAIL);
  const code = readCode(await mailTo(gateway, EMAIL));
  const verified = await verifyCode(gateway, EMAIL, body.verification.challenge_id, code);
  const steps = [stepOf(gateway, verified.body), await stepAfterPassword(gateway, EMAIL)];
  for (const step of steps) {
    expect(step.login).toMatchObject({ access_token: null, requires_2fa_setup: true, user: null });
    expect(refusal(await step.skip())).toEqual([403, 'SECOND_FACTOR_REQUIRED']);
  }
  const [afterMail] = steps;
  if (!afterMail) throw new Error('no step');
  expect(refusal(await afterMail.mail())).toEqual([403, 'FORBIDDEN', 'first factor password']);
  const { secret } = (await afterMail.setUp()).body;
  const enrolled = await afterMail.verifySetUp(appCode(secret));
  expect(enrolled.status).toBe(200);
  const api = new Api(gateway.url, enrolled.body.access_token);
  expect((await api.get('/api/v1/projects')).status).toBe(200);
});
