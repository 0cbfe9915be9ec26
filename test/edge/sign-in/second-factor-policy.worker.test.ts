import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';
import { Api } from '../../support/api.ts';
import { startLocalProvider } from '../../support/sign-in/local-provider.ts';
import { appCode, refusal, stepAfterPassword, stepOf } from '../../support/sign-in/second-step.ts';
import {
  askSignUp,
  type LoginBody,
  logIn,
  mailTo,
  readCode,
  signUp,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const EMAIL = 'ada@example.com';

const isAccepted = async (gateway: SignInGateway, token: string | null) =>
  (await new Api(gateway.url, token).get('/api/v1/projects')).status === 200;

describe('required', () => {
  let gateway: SignInGateway;
  beforeAll(async () => {
    gateway = await startSignInGateway({ TWO_FACTOR: 'required' });
  });
  afterAll(() => gateway.stop());

  test('the enrolment cannot be skipped, and a mail is no second factor after a mail', async () => {
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
    expect(await isAccepted(gateway, enrolled.body.access_token)).toBe(true);
  });
});

describe('off', () => {
  let gateway: SignInGateway;
  beforeAll(async () => {
    gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
  });
  afterAll(() => gateway.stop());

  test('a password is sufficient unless a factor was enrolled earlier', async () => {
    await signUp(gateway, EMAIL);
    const { body } = await logIn(gateway, EMAIL);
    expect(body).toMatchObject({ pre_auth_token: null, requires_2fa_setup: false, user: { email: EMAIL } });
    expect(await isAccepted(gateway, body.access_token)).toBe(true);

    await gateway.database
      .prepare(
        "insert into second_factors (issuer, gid, method, created_at) select 'http://127.0.0.1', id, 'email', 0 from accounts",
      )
      .run();
    const step = await stepAfterPassword(gateway, EMAIL);
    expect(step.login).toMatchObject({ access_token: null, requires_2fa: true, method: 'email' });
    expect(refusal(await step.skip())).toEqual([403, 'SECOND_FACTOR_REQUIRED']);
  });
});

describe("a user of the identity provider, by the provider's password", () => {
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
    expect(await isAccepted(gateway, access_token)).toBe(true);
    for (const secret of [access_token ?? '', refresh_token ?? '']) {
      expect(secret.length).toBeGreaterThan(20);
      expect(readableBefore).not.toContain(secret);
      expect(readableBefore).not.toContain(secret.slice(0, 20));
    }
  };

  test("gets the provider's tokens after the second step, and they are unreadable before it", async () => {
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
});
