import { createHash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Api } from '../support/api.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import {
  addCompany,
  type Company,
  returnToGateway,
  startAtCompany,
} from '../support/sign-in/company-provider.ts';
import { startMailServer } from '../support/sign-in/mail-server.ts';
import { type OidcIssuer, startOidcIssuer } from '../support/sign-in/oidc-issuer.ts';
import { accept, inviteAs, newOwner } from '../support/sign-in/people.ts';
import { appCode, enrolledAccount, stepAfterPassword, stepOf } from '../support/sign-in/second-step.ts';
import {
  askMagicLink,
  type LoginBody,
  mailTo,
  PASSWORD,
  readCode,
  signUp,
  verifyCode,
} from '../support/sign-in/sign-in.ts';
import { startTripsGateway, type TripsGateway } from '../support/worker/trips-gateway.ts';
import { SETTINGS } from '../support/worker/worker.ts';

/** What is valid once, used in several isolates of the gateway concurrently: no isolate may remember it alone. */

const ISOLATES = 3;
/** Before each call of D1 and of an object, so that all isolates read before one of them writes. */
const DELAY_MS = 10;
/** Requests that hash a password; an isolate makes one every half second. */
const FEW = ISOLATES;
const MANY = 4 * ISOLATES;

let gateway: TripsGateway;
let mailServer: Awaited<ReturnType<typeof startMailServer>>;
let issuer: OidcIssuer;
let acme: Company;
let site: { url: string; mails: () => ReturnType<typeof mailsOf> };
/** The same gateway, by each of its isolates. */
let sites: (typeof site)[];
const mailsOf = () => mailServer.posted.map(({ body }) => body);

beforeAll(async () => {
  mailServer = await startMailServer();
  issuer = await startOidcIssuer();
  const settings = { MAIL_API_URL: mailServer.url };
  gateway = await startTripsGateway(DELAY_MS, settings, { isolates: ISOLATES });
  const urls = await Promise.all(Array.from({ length: ISOLATES }, (_, n) => gateway.isolateUrl(n)));
  expect(new Set(urls).size).toBe(ISOLATES);
  sites = urls.map((url) => ({ url, mails: mailsOf }));
  site = sites[0] ?? expect.unreachable();
});
afterAll(async () => {
  await gateway?.stop();
  await Promise.all([mailServer?.stop(), issuer?.stop(), acme?.provider.stop()]);
});

let made = 0;
const newAddress = () => `ada-${made++}@example.com`;

type Use = (at: typeof site, n: number) => Promise<{ status: number }>;

/** Statuses of concurrent uses, spread over the isolates. */
const statuses = async (times: number, use: Use) =>
  (
    await Promise.all(
      Array.from({ length: times }, (_, n) => use(sites[n % ISOLATES] ?? expect.unreachable(), n)),
    )
  ).map(({ status }) => status);

async function expectOneSuccess(times: number, use: Use): Promise<void> {
  const found = await statuses(times, use);
  expect(
    found.filter((status) => status < 400),
    `${found}`,
  ).toHaveLength(1);
  expect(found.filter((status) => status >= 500)).toEqual([]);
}

test('an Idempotency-Key creates one project', async () => {
  const headers = { 'Idempotency-Key': 'once' };
  const ids = new Set<unknown>();
  const found = await statuses(MANY, async ({ url }) => {
    const api = new Api(url, gateway.token);
    const { status, body } = await api.post('/api/v1/projects', { name: 'Once' }, headers);
    if (status === 201) ids.add(body.id);
    return { status };
  });
  expect(found).toContain(201);
  expect(found.filter((status) => ![201, 409].includes(status))).toEqual([]);
  expect(ids.size).toBe(1);
  const { body } = await gateway.api.get<{ projects: { name: string }[] }>('/api/v1/projects');
  expect(body.projects.filter(({ name }) => name === 'Once')).toHaveLength(1);
});

test('an ID token of a workload is exchanged once', async () => {
  const { id } = await gateway.api.project('Deployed');
  const trust = {
    issuer: issuer.url,
    audience: 'branchgate',
    claims: { repository: 'shop' },
    role: 'viewer',
  };
  expect((await gateway.api.post(`/api/v1/projects/${id}/trusts`, trust)).status).toBe(201);
  const form = new URLSearchParams({
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    subject_token_type: 'urn:ietf:params:oauth:token-type:id_token',
    subject_token: await issuer.token({ aud: 'branchgate', sub: 'shop', repository: 'shop' }),
    resource: `${SETTINGS.BASE_URL}/api/v1/projects/${id}`,
  }).toString();
  const headers = { 'Content-Type': 'application/x-www-form-urlencoded' };
  await expectOneSuccess(MANY, ({ url }) =>
    new Api(url, null).call('POST', '/api/v1/auth/token', { body: form, headers }),
  );
});

test('a mailed code signs in once', async () => {
  const email = newAddress();
  await signUp(site, email);
  const { challenge_id } = (await askMagicLink(site, email)).body;
  const code = readCode(await mailTo(site, email, 2));
  await expectOneSuccess(MANY, (at) => verifyCode(at, email, challenge_id, code));
});

test('a code for a new password is used once', async () => {
  const email = newAddress();
  await signUp(site, email);
  const { body } = await new Api(site.url, null).post<{ challenge_id: string }>(
    '/api/v1/auth/password/reset/start',
    { email },
  );
  const code = readCode(await mailTo(site, email, 2));
  const wanted = { email, challenge_id: body.challenge_id, code, new_password: `new ${PASSWORD}` };
  await expectOneSuccess(FEW, ({ url }) => new Api(url, null).post('/api/v1/auth/password/reset', wanted));
});

test.runIf(IS_NIGHTLY)('a code of an authenticator app signs in once', async () => {
  const email = newAddress();
  const { secret } = await enrolledAccount(site, email);
  const steps: LoginBody[] = [];
  for (const at of sites) steps.push((await stepAfterPassword(at, email)).login);
  const code = appCode(secret, 1);
  await expectOneSuccess(ISOLATES, (at, n) => stepOf(at, steps[n] ?? expect.unreachable()).verifyLogin(code));
});

test('a recovery code signs in once', async () => {
  const email = newAddress();
  const {
    recoveryCodes: [code = ''],
  } = await enrolledAccount(site, email);
  const steps: LoginBody[] = [];
  for (const at of sites) steps.push((await stepAfterPassword(at, email)).login);
  await expectOneSuccess(ISOLATES, (at, n) => stepOf(at, steps[n] ?? expect.unreachable()).recover(code));
});

test('a refresh token is renewed once', async () => {
  const { refresh_token } = await signUp(site, newAddress());
  await expectOneSuccess(MANY, ({ url }) =>
    new Api(url, null).post('/api/v1/auth/refresh', { refresh_token }),
  );
});

test('an invitation creates one account', async () => {
  const owner = await newOwner(site, newAddress());
  const email = newAddress();
  const { id, code } = await inviteAs(owner, site, email, 'viewer');
  await expectOneSuccess(FEW, (at) => accept(at, email, id, code));
});

test("the state of a sign-in with a company's provider, and the code of a command line, are used once", async () => {
  acme = await addCompany(site, 'acme.example');
  const person = { sub: 'ada', email: 'ada@acme.example', email_verified: true };
  const { location, cookie } = await startAtCompany(site, acme);
  const address = acme.provider.authorize(location, person);
  await expectOneSuccess(MANY, (at) => returnToGateway(at, address, cookie));

  const code_verifier = 'v'.repeat(43);
  const redirect_uri = 'http://127.0.0.1:9/auth/callback';
  const { body } = await new Api(site.url, null).post<{ authorization_url: string }>(
    '/api/v1/auth/cli/start',
    {
      redirect_uri,
      state: 'cli-state',
      code_challenge: createHash('sha256').update(code_verifier).digest('base64url'),
      code_challenge_method: 'S256',
      email: person.email,
    },
  );
  const begun = await startAtCompany(site, acme, new URL(body.authorization_url).search);
  const back = await returnToGateway(site, acme.provider.authorize(begun.location, person), begun.cookie);
  const code = new URL(back.headers.get('location') ?? '').searchParams.get('code');
  await expectOneSuccess(MANY, ({ url }) =>
    new Api(url, null).post('/api/v1/auth/cli/exchange', { code, redirect_uri, code_verifier }),
  );
});
