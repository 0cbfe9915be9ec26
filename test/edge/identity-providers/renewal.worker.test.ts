import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import {
  addCompany,
  type Company,
  type ProviderPerson,
  returnToGateway,
  startAtCompany,
} from '../../support/sign-in/company-provider.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

/** What a provider may say about its people after their sign-in, and how it may not say it. */

const DAY_MS = 86_400_000;

interface Tokens {
  access_token: string;
  refresh_token: string;
}

let gateway: SignInGateway;
let acme: Company;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: undefined });
  acme = await addCompany(gateway, 'acme.example');
});
afterAll(async () => {
  await acme?.provider.stop();
  await gateway?.stop();
});
beforeEach(() => {
  acme.provider.givesRefreshTokens = false;
  acme.provider.present.clear();
});

async function signIn({ provider, id }: Company, person: { sub: string }): Promise<Response> {
  const { location, cookie } = await startAtCompany(gateway, { id });
  return returnToGateway(gateway, provider.authorize(location, person), cookie);
}

async function signedIn(at: Company, person: { sub: string }): Promise<Tokens> {
  const response = await signIn(at, person);
  const body = (await response.json()) as Tokens;
  expect([response.status, body]).toMatchObject([200, {}]);
  return body;
}

const ada = (more: { sub: string }): ProviderPerson => ({
  email: `ada@${acme.domain}`,
  email_verified: true,
  ...more,
});

describe('a session that is renewed with the provider', () => {
  const renew = (refresh_token: string) =>
    new Api(gateway.url, null).post<Tokens>('/api/v1/auth/refresh', { refresh_token });
  const ofSubject = (subject: string) =>
    gateway.database
      .prepare(
        `select person.role person, member.role member from provider_people person
          join users on users.gid = person.id join organization_members member on member.user_id = users.id
          where person.subject = ?`,
      )
      .bind(subject)
      .first();
  /** Longer ago than the provider is asked again. */
  const later = () =>
    gateway.database.prepare('update sessions set checked_at = 0 where person_id is not null').run();

  test('has the role that the provider gives now', async () => {
    acme.provider.givesRefreshTokens = true;
    const person = ada({ sub: 'demoted' });
    const admin: ProviderPerson = { ...person, groups: ['admins'] };
    const { refresh_token } = await signedIn(acme, admin);
    expect(await ofSubject('demoted')).toEqual({ person: 'admin', member: 'admin' });
    acme.provider.present.set('demoted', { ...person, groups: [] });
    await later();
    const { status, body } = await renew(refresh_token);
    expect([status, decodeJwt(body.access_token).role]).toEqual([200, 'viewer']);
    expect(await ofSubject('demoted')).toEqual({ person: 'viewer', member: 'viewer' });
    await later();
    acme.provider.present.set('demoted', { ...person, groups: ['admins'] });
    expect(decodeJwt((await renew(body.refresh_token)).body.access_token).role).toBe('admin');
  });

  test.each(['constructor', 'prototype'])('is refused if the provider sends a claim %s', async (name) => {
    acme.provider.givesRefreshTokens = true;
    const person = ada({ sub: `with-${name}` });
    const { refresh_token } = await signedIn(acme, person);
    await later();
    acme.provider.present.set(person.sub, { ...person, [name]: { name: 'x' } });
    expect(refusal(await renew(refresh_token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
  });

  test('ends at its longest life, whatever is renewed', async () => {
    acme.provider.givesRefreshTokens = true;
    const { refresh_token } = await signedIn(acme, ada({ sub: 'forever' }));
    const startedDaysAgo = (days: number) =>
      gateway.database
        .prepare(
          'update sessions set created_at = ? where person_id in (select id from provider_people where subject = ?)',
        )
        .bind(Date.now() - days * DAY_MS, 'forever')
        .run();
    const end = Date.now() + DAY_MS;
    await startedDaysAgo(29);
    const { status, body } = await renew(refresh_token);
    expect(status).toBe(200);
    expect(Math.abs((decodeJwt(body.refresh_token).exp ?? 0) - end / 1000)).toBeLessThan(60);
    await startedDaysAgo(30);
    expect(refusal(await renew(body.refresh_token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
  });
});

describe('names that lead to what all tenants share', () => {
  test.each(['__proto__', 'constructor', 'prototype'])(
    '%s in what a provider says is refused',
    async (name) => {
      const hostile = JSON.parse(`{"${name}":{"email":"root@${acme.domain}","0":"x"}}`) as object;
      const person = ada({ sub: 'hostile' });
      // A spread would drop the prototype's name.
      const withName = (value: object) =>
        Object.defineProperties({ ...value }, Object.getOwnPropertyDescriptors(hostile));
      acme.provider.forgery = { claims: (claims) => withName(claims) };
      expect((await signIn(acme, person)).status).toBe(409);
      acme.provider.forgery = {};
      const { configuration } = acme.provider;
      acme.provider.configuration = withName(configuration) as Record<string, unknown>;
      const started = await fetch(`${gateway.url}/api/v1/auth/sso/${acme.id}/start`, { redirect: 'manual' });
      acme.provider.configuration = configuration;
      expect([started.status, await started.json()]).toMatchObject([409, { error: 'SSO_MISCONFIGURED' }]);
      const { keys } = acme.provider;
      acme.provider.keys = keys.map(withName);
      const refused = await signIn(acme, person);
      acme.provider.keys = keys;
      expect(refused.status).toBe(409);
      await signedIn(acme, person);
    },
  );
});
