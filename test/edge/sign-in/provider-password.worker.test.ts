import { afterAll, beforeAll, expect, test } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api } from '../../support/api.ts';
import { startLocalProvider } from '../../support/sign-in/local-provider.ts';
import { appCode, refusal, stepOf } from '../../support/sign-in/second-step.ts';
import { askMagicLink, askSignUp, type LoginBody, logIn } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

/** A gateway without a mail server, whose users sign in with the password of the identity provider. */

const EMAIL = 'ada@example.com';

let provider: Awaited<ReturnType<typeof startLocalProvider>>;
let gateway: SignInGateway;
beforeAll(async () => {
  provider = await startLocalProvider();
  gateway = await startSignInGateway({
    IDP_PASSWORD_GRANT: 'on',
    ...provider.settings,
    MAIL_API_URL: undefined,
  });
});
afterAll(async () => {
  await gateway?.stop();
  await provider?.stop();
});

const isAccepted = async (token: string | null) =>
  (await new Api(gateway.url, token).get('/api/v1/projects')).status === 200;

const logInAtProvider = async () => {
  const { status, body } = await logIn(gateway, EMAIL, LOCAL_PASSWORD);
  expect(status, JSON.stringify(body)).toBe(200);
  return stepOf(gateway, body);
};

/** Everything in a token that is readable without a key. */
const readable = (token: string) =>
  token
    .split('.')
    .map((part) => Buffer.from(part, 'base64url').toString('latin1'))
    .join('\n') + token;

const expectProvidersTokens = async (
  { access_token, refresh_token, user }: LoginBody,
  readableBefore: string,
) => {
  expect(access_token).toMatch(/^v4\.public\./);
  expect(user).toMatchObject({ email: EMAIL, role: 'owner' });
  expect(await isAccepted(access_token)).toBe(true);
  for (const secret of [access_token ?? '', refresh_token ?? '']) {
    expect(secret.length).toBeGreaterThan(20);
    expect(readableBefore).not.toContain(secret);
    expect(readableBefore).not.toContain(secret.slice(0, 20));
  }
};

test("a user gets the provider's tokens after the second step, and they are unreadable before it", async () => {
  const setUp = await logInAtProvider();
  expect(setUp.login).toMatchObject({ access_token: null, refresh_token: null, requires_2fa_setup: true });
  const skipped = await setUp.skip();
  expect(skipped.status).toBe(200);
  await expectProvidersTokens(skipped.body, readable(setUp.token));

  const again = await logInAtProvider();
  expect(refusal(await again.mail())).toEqual([503, 'MAIL_UNAVAILABLE']);
  const { secret } = (await again.setUp()).body;
  const enrolled = await again.verifySetUp(appCode(secret));
  expect(enrolled.status).toBe(200);
  await expectProvidersTokens(enrolled.body, readable(again.token));

  const login = await logInAtProvider();
  expect(login.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'totp' });
  expect(refusal(await login.skip())).toEqual([403, 'SECOND_FACTOR_REQUIRED']);
  const verified = await login.verifyLogin(appCode(secret, 1));
  expect(verified.status).toBe(200);
  await expectProvidersTokens(verified.body, readable(login.token));

  const { results } = await gateway.database.prepare('select issuer from second_factors').all();
  expect(results).toEqual([{ issuer: provider.settings.IDP_URL }]);
  const events = await gateway.database
    .prepare("select metadata from audit_events where name = 'second_factor.enrolled'")
    .all();
  expect(events.results).toHaveLength(1);
});

test('without a mail server, sign-ups and magic links get MAIL_UNAVAILABLE', async () => {
  for (const response of [await askSignUp(gateway, EMAIL), await askMagicLink(gateway, EMAIL)])
    expect(refusal(response)).toEqual([503, 'MAIL_UNAVAILABLE']);
});

test('an unavailable provider does not count as a wrong password', async () => {
  const email = 'grace@example.com';
  await provider.stop();
  await gateway.consume(bucketOf.wrongPassword(email), 29);
  for (let n = 0; n < 3; n++) expect(refusal(await logIn(gateway, email))).toEqual([503, 'IDP_UNAVAILABLE']);
});
