import { createHash, randomBytes } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { type Sealed, unseal } from '../../../edge/crypto/seal.ts';
import { Api, type ApiResponse } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { Browser } from '../../support/sign-in/browser.ts';
import { codesIn, secretsIn } from '../../support/sign-in/found-secrets.ts';
import { deliveredMails } from '../../support/sign-in/mails.ts';
import { appCode, stepOf } from '../../support/sign-in/second-step.ts';
import {
  askMagicLink,
  askSignUp,
  type LoginBody,
  logIn,
  mailTo,
  otherCode,
  readCode,
  type SignInSite,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { contentOfD1 } from '../../support/tenants.ts';

const EMAIL = 'ada@secret.example';
const OTHER = 'grace@secret.example';
const CALLBACK = '/api/v1/auth/idp/callback';
const REDIRECT = 'http://127.0.0.1:49152/auth/callback';

/**
 * Exercises every kind of sign-in, with every failure, and then searches the stack's state for the secrets. The stack
 * is stopped afterwards.
 */
export function describeSignInSecrets(running: () => Stack): void {
  let stack: Stack;
  let folder: ReturnType<typeof devFolder>;
  let site: SignInSite;
  let anybody: Api;

  /** The secrets by name. */
  const secrets = new Map<string, string>();
  const codes: string[] = [];
  const requestIds: string[] = [];

  const secret = (name: string): string => addSecret(name, randomBytes(24).toString('base64url'));

  function addSecret(name: string, value: string | null | undefined): string {
    if (typeof value !== 'string') throw new Error(`there is no ${name}`);
    secrets.set(`${name}, ${secrets.size}`, value);
    return value;
  }

  function addCode(code: string): string {
    codes.push(code);
    return code;
  }

  const TOKENS = ['access_token', 'refresh_token', 'pre_auth_token'] as const;
  type Tokens = Partial<Record<(typeof TOKENS)[number], string | null>>;

  /** Expects a status. @returns the body, whose tokens are added to the secrets */
  function expectStatus<B extends object>(status: number, response: ApiResponse<B>): B {
    expect(response.status, JSON.stringify(response.body)).toBe(status);
    requestIds.push(response.headers.get('x-request-id') ?? '');
    for (const name of TOKENS) {
      const token = (response.body as Tokens | null)?.[name];
      if (token) addSecret(name, token);
    }
    return response.body;
  }

  const second = (login: LoginBody) => stepOf(site, login);
  const refresh = (refresh_token: string) => anybody.post<Tokens>('/api/v1/auth/refresh', { refresh_token });

  /** Unseals the content of the browser's cookie. */
  async function openCookie({ cookies }: Browser): Promise<Record<string, string>> {
    const { CREDENTIAL_KEYS = '' } = gatewaySecrets(folder);
    const [id = '', encoded = ''] = CREDENTIAL_KEYS.split(':');
    const prefix = 'idp_sign_in_';
    const cookie = cookies.find(({ name }) => name.startsWith(prefix));
    if (!cookie) throw new Error('there is no cookie');
    const sealed = JSON.parse(decodeURIComponent(cookie.value)) as Sealed;
    addSecret('cookie', sealed.sealed);
    const context = ['idp_sign_in', cookie.name.slice(prefix.length)];
    return JSON.parse(await unseal([{ id, bytes: Buffer.from(encoded, 'base64') }], context, sealed));
  }

  beforeAll(async () => {
    stack = running();
    folder = devFolder(stack.devDir);
    site = { url: stack.url, mails: () => deliveredMails(stack) };
    anybody = new Api(stack.url, null);
    const { PLATFORM_SECRET, CREDENTIAL_KEYS, JWT_KEYS, IDP_CLIENT_SECRET } = gatewaySecrets(folder);
    addSecret('platform secret', PLATFORM_SECRET);
    addSecret('credential key', CREDENTIAL_KEYS.split(':')[1]);
    addSecret('JWT key', JWT_KEYS.split(':')[1]);
    addSecret('client secret', IDP_CLIENT_SECRET);
  });

  const password = secret('password');
  /** The secret of the authenticator app. */
  let appSecret: string;

  test('an account: sign-up, wrong codes, and the same address again', async () => {
    const { verification } = expectStatus(202, await askSignUp(site, EMAIL, password));
    const code = addCode(readCode(await mailTo(site, EMAIL)));
    const wrong = addCode(otherCode(code));
    expectStatus(401, await verifyCode(site, EMAIL, verification.challenge_id, wrong));
    expectStatus(200, await verifyCode(site, EMAIL, verification.challenge_id, code));
    expectStatus(401, await verifyCode(site, EMAIL, verification.challenge_id, code));
    expectStatus(202, await askSignUp(site, EMAIL, secret('password of another sign-up')));
  });

  test('a password and an app', async () => {
    expectStatus(401, await logIn(site, EMAIL, secret('wrong password')));
    expectStatus(401, await logIn(site, 'nobody@secret.example', secret('password of an unknown address')));
    const enrolling = second(expectStatus(200, await logIn(site, EMAIL, password)));
    const setUp = expectStatus(200, await enrolling.setUp());
    appSecret = addSecret('app secret', setUp.secret);
    expectStatus(401, await enrolling.verifySetUp(addCode(otherCode(appCode(appSecret, 9)))));
    const used = addCode(appCode(appSecret));
    expectStatus(200, await enrolling.verifySetUp(used));
    expectStatus(403, await enrolling.setUp());
    const verifying = second(expectStatus(200, await logIn(site, EMAIL, password)));
    expectStatus(401, await verifying.verifyLogin(used));
    const { refresh_token } = expectStatus(200, await verifying.verifyLogin(addCode(appCode(appSecret, 1))));
    const next = expectStatus(200, await refresh(refresh_token ?? ''));
    expectStatus(401, await refresh(refresh_token ?? ''));
    expectStatus(401, await refresh(next.access_token ?? ''));
    expectStatus(204, await new Api(stack.url, next.access_token ?? '').post('/api/v1/auth/logout', {}));
  });

  test('a magic link, and codes by mail', async () => {
    const { verification } = expectStatus(202, await askSignUp(site, OTHER, password));
    const signUpCode = addCode(readCode(await mailTo(site, OTHER)));
    expectStatus(200, await verifyCode(site, OTHER, verification.challenge_id, signUpCode));
    const step = second(expectStatus(200, await logIn(site, OTHER, password)));
    expectStatus(202, await step.mail());
    const mailed = addCode(readCode(await mailTo(site, OTHER, 2)));
    expectStatus(401, await step.verifySetUp(addCode(otherCode(mailed))));
    expectStatus(200, await step.verifySetUp(mailed));
    const { challenge_id } = expectStatus(202, await askMagicLink(site, OTHER));
    const linked = addCode(readCode(await mailTo(site, OTHER, 3)));
    const half = second(expectStatus(200, await verifyCode(site, OTHER, challenge_id, linked)));
    expectStatus(403, await half.mail());
  });

  test('a password at the provider', async () => {
    expectStatus(401, await logIn(site, 'linus@example.com', secret('wrong password for the provider')));
    const step = second(expectStatus(200, await logIn(site, 'linus@example.com', LOCAL_PASSWORD)));
    expectStatus(200, await step.skip());
    expectStatus(401, await step.skip());
  });

  test('a browser', async () => {
    const browser = new Browser(({ pathname }) => pathname !== CALLBACK);
    const { address } = await browser.signIn(`${stack.url}/api/v1/auth/idp/login`, 'ada@example.com');
    addSecret('state', address.searchParams.get('state'));
    addSecret('code', address.searchParams.get('code'));
    const { nonce, verifier } = await openCookie(browser);
    addSecret('nonce', nonce);
    addSecret('verifier', verifier);
    const { response } = await browser.open(address.href);
    requestIds.push(response.headers.get('x-request-id') ?? '');
    expect(response.status).toBe(200);
    const tokens = (await response.json()) as Required<Tokens>;
    const access = addSecret('access_token', tokens.access_token);
    const first = addSecret('refresh_token', tokens.refresh_token);
    expectStatus(400, await anybody.get(address.pathname + address.search));
    const { refresh_token } = expectStatus(200, await refresh(first));
    expectStatus(204, await new Api(stack.url, access).post('/api/v1/auth/logout', { refresh_token }));
    expectStatus(401, await refresh(refresh_token ?? ''));
  });

  test('a command line', async () => {
    const exchange = async (isHonest: boolean) => {
      const code_verifier = secret('verifier').padEnd(43, 'x');
      const code_challenge = createHash('sha256').update(code_verifier).digest('base64url');
      const parameters = { redirect_uri: REDIRECT, state: secret('state'), code_challenge };
      const started = await anybody.post<{ authorization_url: string }>('/api/v1/auth/cli/start', {
        ...parameters,
        code_challenge_method: 'S256',
      });
      const { authorization_url } = expectStatus(200, started);
      const browser = new Browser(({ port }) => port !== new URL(REDIRECT).port);
      const { address } = await browser.signIn(authorization_url, 'ada@example.com');
      const code = addSecret('code', address.searchParams.get('code'));
      return anybody.post<Tokens>('/api/v1/auth/cli/exchange', {
        code,
        redirect_uri: REDIRECT,
        code_verifier: isHonest ? code_verifier : secret('wrong verifier').padEnd(43, 'x'),
      });
    };
    expectStatus(400, await exchange(false));
    const { refresh_token } = expectStatus(200, await exchange(true));
    expectStatus(200, await refresh(refresh_token ?? ''));
  });

  test('secrets in the wrong fields', async () => {
    const word = secret('misplaced secret');
    const responses = await Promise.all([
      anybody.get(`/api/v1/auth/idp/login?return_to=${word}`),
      anybody.get(`/api/v1/auth/idp/login?password=${word}`),
      anybody.get(`${CALLBACK}?state=${word}&code=${word}`),
      anybody.get(`${CALLBACK}?error=${word}&error_description=${word}&state=${word}`),
      anybody.get(`/api/v1/auth/${word}`),
      anybody.post('/api/v1/auth/login', { email: word, password: word }),
      anybody.post('/api/v1/auth/login', { email: EMAIL, password: word, [word]: word }),
      anybody.post('/api/v1/auth/login', { email: EMAIL, password: word, provider: word }),
      anybody.call('POST', '/api/v1/auth/signup', { body: `{"password":"${word}` }),
      anybody.post('/api/v1/auth/refresh', { refresh_token: word }),
      anybody.post('/api/v1/auth/cli/exchange', { code: word, redirect_uri: REDIRECT, code_verifier: word }),
      new Api(stack.url, word).post('/api/v1/auth/2fa/verify-login', { code: word }),
      new Api(stack.url, word).get('/api/v1/me'),
    ]);
    expect(responses.map(({ status }) => status)).toEqual([
      422, 422, 400, 400, 401, 422, 422, 422, 400, 401, 422, 401, 401,
    ]);
    requestIds.push(...responses.map(({ headers }) => headers.get('x-request-id') ?? ''));
  });

  const allLogs = () => globSync('*.log', { cwd: folder.logs });
  const readLog = (name: string) => readFileSync(join(folder.logs, name), 'utf8');

  test('enough secrets were collected', () => {
    expect(secrets.size).toBeGreaterThanOrEqual(50);
    for (const [name, value] of secrets) expect(value.length, name).toBeGreaterThanOrEqual(20);
    expect(codes.length).toBeGreaterThanOrEqual(9);
    for (const code of codes) expect(code).toMatch(/^\d{6}$/);
    expect(secretsIn(`… ${password.slice(0, 25)} …`, secrets)).toEqual(['password, 0']);
    const [code = ''] = codes;
    expect(codesIn(`{"code":"${code}"}`, codes)).toEqual([code]);
  });

  test('no table contains one, and no audit event contains a hash or a sealed secret', () => {
    const { audit_events = [], accounts = [], second_factors = [], ...tables } = contentOfD1(stack.devDir);
    for (const [table, rows] of Object.entries({ audit_events, accounts, second_factors, ...tables })) {
      const text = JSON.stringify(rows);
      expect(secretsIn(text, secrets), table).toEqual([]);
      expect(codesIn(text, codes), table).toEqual([]);
    }
    const stored = [
      ...accounts.map(({ password_hash }) => String(password_hash)),
      ...second_factors.flatMap(({ sealed_secret }) =>
        sealed_secret === null ? [] : [String(sealed_secret)],
      ),
    ];
    expect(stored.length).toBeGreaterThanOrEqual(3);
    const events = JSON.stringify(audit_events);
    expect(stored.filter((text) => events.includes(text))).toEqual([]);
    for (const name of ['account.created', 'sign_in.succeeded', 'sign_in.failed', 'second_factor.enrolled'])
      expect(events).toContain(name);
    expect(events).toContain('branchgate.cli.login');
  });

  test('no log contains one', async () => {
    const logs = allLogs();
    expect(logs).toEqual(expect.arrayContaining(['gateway.log', 'idp.log', 'agent.log']));
    await eventually(async () => {
      const gateway = readLog('gateway.log');
      expect(requestIds.filter((id) => !gateway.includes(id))).toEqual([]);
    });
    for (const name of logs) {
      const text = readLog(name);
      expect(secretsIn(text, secrets), name).toEqual([]);
      expect(codesIn(text, codes), name).toEqual([]);
    }
  });

  test('no file of the gateway or its objects contains one', async () => {
    await stack.stop();
    const files = globSync('**/*', { cwd: folder.gatewayState, withFileTypes: true }).filter((entry) =>
      entry.isFile(),
    );
    expect(files.length).toBeGreaterThan(5);
    for (const { parentPath, name } of files) {
      // Latin-1 maps each byte to one character.
      const text = readFileSync(join(parentPath, name), 'latin1');
      expect(secretsIn(text, secrets), join(parentPath, name)).toEqual([]);
    }
  });
}
