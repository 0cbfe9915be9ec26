import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { plainMail } from '../../../edge/mail/mail.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import {
  addCompany,
  type Company,
  returnToGateway,
  startAtCompany,
} from '../../support/sign-in/company-provider.ts';
import { newOwner } from '../../support/sign-in/people.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { askMagicLink, askSignUp, mailTo } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

/** Mails that callers with few rights cause: to whom, how often and with which text. */

const TEXT =
  'Your account is closed soon. Sign in at https://evil.example/login\r\nBcc: all@example.com\n\nThe team';
const RATE_LIMITED = [429, 'RATE_LIMITED'];

let gateway: SignInGateway;
let evil: Company;
let scim: Api;
let count = 0;
/** An address of nobody who has anything to do with the gateway. */
let victim: string;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
  evil = await addCompany(gateway, 'evil.example');
  const token = `/api/v1/identity-providers/${evil.id}/scim-token`;
  scim = new Api(gateway.url, (await evil.owner.api.post<{ token: string }>(token, {})).body.token);
});
afterAll(async () => {
  await evil?.provider.stop();
  await gateway?.stop();
});
beforeEach(() => {
  count += 1;
  victim = `victim-${count}@victim.example`;
});

const mailsTo = (domain: string) => gateway.mails().filter(({ to }) => to.endsWith(domain));

interface Tokens {
  access_token: string;
  refresh_token: string;
}

/** Signs in a person of the hostile company by its own provider. */
async function signInAtEvil(person: { sub: string; email: string; groups?: string }): Promise<Response> {
  const { location, cookie } = await startAtCompany(gateway, evil);
  return returnToGateway(
    gateway,
    evil.provider.authorize(location, { ...person, email_verified: true }),
    cookie,
  );
}

describe('a client of SCIM that names people by addresses of others', () => {
  const requires = (required: boolean) =>
    evil.owner.api.call('PATCH', '/api/v1/tenant', { body: { sso_required: required } });

  test('has no notice mailed to them, and each of at most 50 owners gets ten an hour', async () => {
    expect((await signInAtEvil({ sub: 'owner', email: evil.owner.email, groups: 'owners' })).status).toBe(
      200,
    );
    const people = [victim, `${victim},other@victim.example`, TEXT, `"x" <${victim}>`];
    const named = people.map((text, n) => ({
      userName: `person-${n}@evil.example`,
      emails: [{ value: text, primary: true }],
    }));
    const ids: string[] = [];
    for (const body of [...named, { userName: victim }, { userName: TEXT.slice(0, 200) }]) {
      const { status, body: user } = await scim.post<{ id: string }>('/scim/v2/Users', body);
      expect(status).toBe(201);
      ids.push(user.id);
    }
    const more = Array.from({ length: 60 }, (_, n) => ({ userName: `many-${n}@evil.example` }));
    const made = await Promise.all(more.map((body) => scim.post<{ id: string }>('/scim/v2/Users', body)));
    const members = [...ids, ...made.map(({ body }) => body.id)].map((value) => ({ value }));
    expect((await scim.post('/scim/v2/Groups', { displayName: 'owners', members })).status).toBe(201);

    const before = gateway.mails().length;
    const answers = [];
    for (let n = 0; n < 11; n++) answers.push(await requires(n % 2 === 0));
    expect(answers.map(({ status }) => status)).toEqual([...Array(10).fill(200), 429]);
    // Every owner of the ten times, if there were no bound: 67 of them.
    await eventually(async () => expect(gateway.mails()).toHaveLength(before + 10 * 50));
    expect(mailsTo('victim.example')).toEqual([]);
    for (const { to, subject, text } of gateway.mails().slice(before)) {
      expect(to).toMatch(/^[a-z0-9-]+@evil\.example$/);
      expect(`${subject}${text}`).not.toContain('https:');
    }
    expect(
      gateway
        .mails()
        .slice(before)
        .filter(({ to }) => to === evil.owner.email),
    ).toHaveLength(10);
    expect(refusal(await evil.owner.api.post('/api/v1/tenant/recovery-code', {}))).toEqual(RATE_LIMITED);
  });

  test('does not choose the text of an invitation', async () => {
    const person = { sub: 'mallory', email: 'mallory@evil.example', groups: 'admins' };
    const { refresh_token } = (await (await signInAtEvil(person)).json()) as Tokens;
    const found = await scim.get<{ Resources: { id: string }[] }>(
      '/scim/v2/Users?filter=userName%20eq%20%22mallory@evil.example%22',
    );
    const rename = await scim.post<{ id: string }>('/scim/v2/Users', {
      userName: 'mallory@evil.example',
      emails: [{ value: TEXT, primary: true }],
    });
    expect([found.body.Resources, rename.status]).toEqual([[expect.anything()], 201]);
    const renewed = await new Api(gateway.url, null).post<Tokens>('/api/v1/auth/refresh', { refresh_token });
    const api = new Api(gateway.url, renewed.body.access_token);
    expect((await api.get('/api/v1/me')).body.email).toBe('mallory@evil.example');
    expect((await api.post('/api/v1/invitations', { email: victim, role: 'viewer' })).status).toBe(201);
    const { text } = await mailTo(gateway, victim);
    expect(text.split('\n')[0]).toBe(
      'mallory@evil.example invites you to join a team at branchgate with the role viewer.',
    );
  });

  test.each(['sign-in:https://evil.example/x', '"call+1-555"', 'a(b)', 'x\u202ey', 'x\r\nbcc:y'])(
    'does not sign in as %j of its own domain',
    async (name) => {
      const response = await signInAtEvil({ sub: name, email: `${name}@evil.example` });
      expect([response.status, ((await response.json()) as { error: string }).error]).toEqual([
        403,
        'SSO_ADDRESS_REFUSED',
      ]);
    },
  );
});

describe('a mailbox whose owner has asked for nothing', () => {
  /** The aliases are one mailbox, as its provider delivers them. */
  const alias = (n: number) => `strang.er${n % 2 === 0 ? '' : '.'}-${count}+${n}@victim.example`;

  test('gets ten mails about sign-ups a day, whatever aliases are used', async () => {
    const statuses = [];
    for (let n = 0; n < 12; n++) statuses.push((await askSignUp(gateway, alias(n))).status);
    expect(statuses).toEqual([...Array(10).fill(202), 429, 429]);
    expect((await askSignUp(gateway, `other-${count}@victim.example`)).status).toBe(202);
  });

  test('gets ten invitations a day from all tenants together', async () => {
    const hosts = [
      await newOwner(gateway, `one-${count}@example.com`),
      await newOwner(gateway, `two-${count}@example.com`),
    ];
    const statuses = [];
    for (let n = 0; n < 12; n++) {
      const email = alias(n);
      const answer = await hosts[n % 2]?.api.post('/api/v1/invitations', { email, role: 'viewer' });
      statuses.push(answer?.status);
    }
    expect(statuses).toEqual([...Array(10).fill(201), 429, 429]);
  });

  test('gets an invitation although somebody asks for codes for it', async () => {
    for (let n = 0; n < 6; n++) {
      await askMagicLink(gateway, victim);
      await askSignUp(gateway, victim);
    }
    const owner = await newOwner(gateway, `inviting-${count}@example.com`);
    const invited = await owner.api.post<{ id: string }>('/api/v1/invitations', {
      email: victim,
      role: 'viewer',
    });
    expect(invited.status).toBe(201);
    await eventually(async () =>
      expect(
        mailsTo(victim)
          .map(({ text }) => text)
          .join(),
      ).toContain(invited.body.id),
    );
  });
});

test('a text of a user is one line of a mail, and no markup', () => {
  const name = `<b>Shop</b> & "co"\r\nBcc: all@example.com\n\nCall us\u202e\u2028now`;
  const { subject, text, html } = plainMail('a@example.com', `About ${name}`, ['First.', `It is ${name}.`]);
  expect(subject).toBe('About <b>Shop</b> & "co" Bcc: all@example.com Call us now');
  expect(text).toBe('First.\n\nIt is <b>Shop</b> & "co" Bcc: all@example.com Call us now.\n');
  expect(html).toBe(
    '<p>First.</p>\n<p>It is &lt;b&gt;Shop&lt;/b&gt; &amp; &quot;co&quot; Bcc: all@example.com Call us now.</p>',
  );
});
