import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { Browsing } from '../../support/sign-in/browsing.ts';
import { returnToGateway, startAtCompany } from '../../support/sign-in/company-provider.ts';
import {
  DRESSES,
  type DressName,
  OTHER_CLIENT,
  startDressedProvider,
} from '../../support/sign-in/dressed-provider.ts';
import { type StandInGitHub, startGitHub } from '../../support/sign-in/github.ts';
import { newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

let gateway: SignInGateway;
let github: StandInGitHub;
/** The strings of TXT records by domain, as a resolver quotes them; null: it fails. */
const txt = new Map<string, string[] | null>();
const resolver = createServer(({ url }, response) => {
  const name = new URL(url ?? '', 'http://resolver').searchParams.get('name') ?? '';
  const data = txt.get(name) ?? (txt.has(name) ? null : []);
  if (!data) return response.writeHead(500).end();
  const Answer = [
    { name, type: 5, data: 'alias.example.' },
    ...data.map((text) => ({ name, type: 16, data: text })),
  ];
  return response
    .writeHead(200, { 'content-type': 'application/dns-json' })
    .end(JSON.stringify({ Status: 0, Answer }));
});

beforeAll(async () => {
  github = await startGitHub();
  await new Promise<void>((resolve) => resolver.listen(0, '127.0.0.1', resolve));
  gateway = await startSignInGateway({
    TWO_FACTOR: 'off',
    IDP_URL: undefined,
    GITHUB_URL: github.url,
    GITHUB_API_URL: `${github.url}/api`,
    DNS_OVER_HTTPS_URL: `http://127.0.0.1:${(resolver.address() as AddressInfo).port}/dns-query`,
  });
});
afterAll(async () => {
  await gateway?.stop();
  await github?.stop();
  resolver.close();
});

interface Company {
  owner: TestPerson;
  id: string;
  redirectUri: string;
  domain: string;
}

async function companyWith(domain: string, settings: object): Promise<Company> {
  const owner = await newOwner(gateway, `founder@${domain}`);
  const { body } = await owner.api.post<{ id: string; redirect_uri: string }>('/api/v1/identity-providers', {
    name: domain,
    domains: [domain],
    ...settings,
  });
  const { tenant_id } = (await owner.api.get<{ tenant_id: string }>('/api/v1/me')).body;
  const path = `/platform/v1/tenants/${tenant_id}/identity-providers/${body.id}/domains/${domain}/verify`;
  expect((await new Api(gateway.url, PLATFORM_SECRET).call('POST', path)).status).toBe(200);
  return { owner, id: body.id, redirectUri: body.redirect_uri, domain };
}

/** Addresses of the gateway's `BASE_URL` are served by the worker of this test. */
const browsing = ({ redirectUri }: Company) =>
  new Browsing((address) =>
    address.origin === new URL(redirectUri).origin
      ? new URL(address.pathname + address.search, gateway.url)
      : address,
  );

async function signIn(company: Company, email: string) {
  const start = `${gateway.url}/api/v1/auth/sso/${company.id}/start?${new URLSearchParams({ login_hint: email })}`;
  const { response } = await browsing(company).go(start);
  const body = (await response.json()) as { access_token: string; error?: string };
  return { status: response.status, body };
}

async function signedIn(company: Company, email: string) {
  const { status, body } = await signIn(company, email);
  expect([status, body.error]).toEqual([200, undefined]);
  return (await new Api(gateway.url, body.access_token).get('/api/v1/me')).body;
}

/** Signs in as `branchgate login` does. @returns the person */
async function signedInByCommandLine(company: Company, email: string) {
  const api = new Api(gateway.url, null);
  const code_verifier = 'v'.repeat(43);
  const redirect_uri = 'http://127.0.0.1:9/auth/callback';
  const { body } = await api.post<{ authorization_url: string }>('/api/v1/auth/cli/start', {
    redirect_uri,
    state: 'cli-state',
    code_challenge: createHash('sha256').update(code_verifier).digest('base64url'),
    code_challenge_method: 'S256',
    email,
  });
  const { address } = await browsing(company).go(body.authorization_url, ({ port }) => port === '9');
  expect(address.searchParams.get('state')).toBe('cli-state');
  const code = address.searchParams.get('code') ?? '';
  const exchanged = await api.post<{ access_token: string }>('/api/v1/auth/cli/exchange', {
    code,
    redirect_uri,
    code_verifier,
  });
  expect(exchanged.status).toBe(200);
  return (await new Api(gateway.url, exchanged.body.access_token).get('/api/v1/me')).body;
}

describe.each(Object.keys(DRESSES) as DressName[])('a provider that behaves as %s', (name) => {
  const domain = `${name}.example`;
  let company: Company;
  let provider: Awaited<ReturnType<typeof startDressedProvider>>;

  beforeAll(async () => {
    provider = await startDressedProvider(name);
    company = await companyWith(domain, provider.settings);
    await provider.register(company.redirectUri);
  });
  afterAll(() => provider?.stop());

  test('passes the test of an owner', async () => {
    const { body } = await company.owner.api.call('POST', `/api/v1/identity-providers/${company.id}/test`);
    expect(body).toMatchObject({ ok: true });
  });

  test('signs in its people, with the roles of its claims', async () => {
    const { issuer } = provider.settings;
    expect(await signedIn(company, `ada@${domain}`)).toMatchObject({ issuer, role: 'viewer' });
    const role = 'role_claim' in provider.settings ? 'admin' : 'viewer';
    expect(await signedIn(company, `admin@${domain}`)).toMatchObject({ issuer, role });
  });

  test('signs in the command line', async () => {
    const email = `cli@${domain}`;
    expect(await signedInByCommandLine(company, email)).toMatchObject({ email, role: 'viewer' });
  });

  test('signs in nobody with an address of another domain', async () => {
    const refused = await signIn(company, 'ada@elsewhere.example');
    expect([refused.status, refused.body.error]).toEqual([403, 'SSO_ADDRESS_REFUSED']);
  });

  test('is reported as unavailable when it is away', async () => {
    provider.leave();
    const away = await signIn(company, `ada@${domain}`);
    expect([away.status, away.body.error]).toEqual([503, 'IDP_UNAVAILABLE']);
  });
});

describe('two tenants with one provider', () => {
  let provider: Awaited<ReturnType<typeof startDressedProvider>>;
  let acme: Company;
  let evil: Company;

  beforeAll(async () => {
    provider = await startDressedProvider('keycloak');
    acme = await companyWith('acme.example', provider.settings);
    evil = await companyWith('evil.example', { ...provider.settings, ...OTHER_CLIENT });
    await provider.register(acme.redirectUri, evil.redirectUri);
  });
  afterAll(() => provider?.stop());

  test('have people of their own, and sign in nobody of the other domain', async () => {
    const { id } = await signedIn(acme, `admin@${acme.domain}`);
    const refused = await signIn(evil, `admin@${acme.domain}`);
    expect([refused.status, refused.body.error]).toEqual([403, 'SSO_ADDRESS_REFUSED']);
    const { body } = await evil.owner.api.get<{ members: { email: string }[] }>('/api/v1/members');
    expect(body.members.map(({ email }) => email)).toEqual([evil.owner.email]);
    expect(await signedIn(acme, `admin@${acme.domain}`)).toMatchObject({ id });
  });

  test('accept no response of the other one, with the cookie of either sign-in', async () => {
    const begin = async (company: Company) => {
      const query = `?${new URLSearchParams({ login_hint: `ada@${acme.domain}` })}`;
      const { location, cookie } = await startAtCompany(gateway, company, query);
      const { origin } = new URL(company.redirectUri);
      const { address } = await new Browsing().go(location, (target) => target.origin === origin);
      return { address, cookie };
    };
    for (const [from, to] of [
      [acme, evil],
      [evil, acme],
    ] as const) {
      const asked = await begin(from);
      const victim = await begin(to);
      for (const cookie of [asked.cookie, victim.cookie, `${asked.cookie}; ${victim.cookie}`]) {
        const moved = new URL(victim.address.pathname + asked.address.search, gateway.url);
        const response = await returnToGateway(gateway, moved, cookie);
        expect([response.status, ((await response.json()) as { error: string }).error]).toEqual([
          400,
          'SIGN_IN_FAILED',
        ]);
      }
    }
  });
});

describe('GitHub', () => {
  let company: Company;
  beforeAll(async () => {
    company = await companyWith('hub.example', {
      kind: 'github',
      client_id: github.clientId,
      client_secret: github.secret,
      role_claim: 'teams',
      roles: { 'acme/platform': 'admin' },
    });
  });

  test('signs in the people of a team, by the verified address in the domain of the company', async () => {
    github.person = {
      id: 7,
      login: 'ada',
      emails: [
        { email: 'ada@private.example', primary: true, verified: true },
        { email: 'ada@hub.example', primary: false, verified: true },
      ],
      teams: [{ organization: 'acme', slug: 'platform' }],
    };
    const email = 'ada@hub.example';
    expect(await signedIn(company, email)).toMatchObject({ email, role: 'admin', issuer: github.url });
    expect(await signedInByCommandLine(company, email)).toMatchObject({ email, role: 'admin' });
    github.person = { ...github.person, teams: [{ organization: 'other', slug: 'platform' }] };
    expect(await signedIn(company, email)).toMatchObject({ email, role: 'viewer' });
  });

  test.each([
    ['an address that is not verified', [{ email: 'eve@hub.example', primary: true, verified: false }]],
    ['only an address elsewhere', [{ email: 'eve@private.example', primary: true, verified: true }]],
    ['no address', []],
  ])('signs in nobody with %s', async (_, emails) => {
    github.person = { id: 8, login: 'eve', emails, teams: [] };
    const refused = await signIn(company, 'eve@hub.example');
    expect([refused.status, refused.body.error]).toEqual([403, 'SSO_ADDRESS_REFUSED']);
  });

  test('is misconfigured with a wrong client secret', async () => {
    const path = `/api/v1/identity-providers/${company.id}`;
    expect((await company.owner.api.patch(path, { client_secret: 'wrong' })).status).toBe(200);
    const refused = await signIn(company, 'ada@hub.example');
    expect(refusal({ status: refused.status, body: refused.body })).toEqual([409, 'SSO_MISCONFIGURED']);
  });
});

test('an owner verifies a domain by the TXT record of its own provider', async () => {
  const domain = 'named.example';
  const settings = { kind: 'github', client_id: github.clientId, client_secret: github.secret };
  const provider = async (email: string) => {
    const owner = await newOwner(gateway, email);
    const { body } = await owner.api.post<{ id: string; domains: { txt_record: string }[] }>(
      '/api/v1/identity-providers',
      { name: domain, domains: [domain], ...settings },
    );
    const path = `/api/v1/identity-providers/${body.id}/domains/${domain}/verify`;
    return { record: body.domains[0]?.txt_record ?? '', verify: () => owner.api.call('POST', path) };
  };
  const own = await provider('a@private.example');
  const other = await provider('b@private.example');
  const methods = async () =>
    (await new Api(gateway.url, null).post('/api/v1/auth/methods', { email: `ada@${domain}` })).body.sso;
  expect(refusal(await own.verify())).toEqual([409, 'DOMAIN_NOT_VERIFIED']);
  for (const wrong of ['v=spf1 -all', other.record, `${own.record}x`, own.record.slice(0, -1)]) {
    txt.set(domain, [`"${wrong}"`]);
    expect(refusal(await own.verify()), wrong).toEqual([409, 'DOMAIN_NOT_VERIFIED']);
  }
  txt.set(domain, null);
  expect(refusal(await own.verify())).toEqual([503, 'DOMAIN_LOOKUP_FAILED']);
  expect(await methods()).toBeNull();
  // A long record comes in several strings.
  txt.set(domain, [
    '"v=spf1 -all"',
    `"${own.record.slice(0, 20)}" "${own.record.slice(20)}"`,
    `"${other.record}"`,
  ]);
  expect((await own.verify()).status).toBe(200);
  expect(await methods()).toMatchObject({ name: domain });
  expect(refusal(await other.verify())).toEqual([409, 'DOMAIN_TAKEN']);
});
