import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { decodeJwt } from 'jose';
import { beforeAll, expect, test } from 'vitest';
import { workerConfiguration } from '../../../dev/build/worker.ts';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { Api } from '../../support/api.ts';
import { checkResponse, DESCRIPTION } from '../../support/contract.ts';
import { query } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import {
  type Caller,
  type HostileRequest,
  hostileRequests,
  type Resources,
} from '../../support/hostile-requests.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { createIdentityProvider, createMachines, OPERATIONS } from '../../support/operations.ts';
import { RawClient } from '../../support/raw-request.ts';
import { violations } from '../../support/records/invariants.ts';
import { deliveredMails } from '../../support/sign-in/mails.ts';
import { ownTokens } from '../../support/sign-in/own-tokens.ts';
import { PASSWORD, signUp } from '../../support/sign-in/sign-in.ts';
import { takeSnapshot } from '../../support/snapshot.ts';
import { type Stack, UNLIMITED } from '../../support/stack/stack.ts';
import { sourcesOf } from '../../support/stack/stack-sources.ts';
import { type TokenOptions, tenantNamed, tokenOf } from '../../support/tenants.ts';

/** Seed of the generated requests. */
const SEED = Number(process.env.HOSTILE_SEED ?? 20_260_131);
const PHASES = {
  'with the whole service up': IS_NIGHTLY ? 1700 : 450,
  'without a host': IS_NIGHTLY ? 200 : 100,
  'over the limits': IS_NIGHTLY ? 200 : 100,
};
/** Projects and branches that may be deleted. */
const SPARES = IS_NIGHTLY ? 3 : 1;
type Phase = keyof typeof PHASES;
const CONCURRENCY = 8;
const DISCONNECTED_AT_MOST_MS = 15_000;

const EMAIL = 'ada@stormy.example';
/** The other host has no agent. */
const NEED_ANOTHER_HOST = ['moveProject', 'getMove', 'cancelMove', 'getDrain'];

/**
 * Operations that need a token or key of somebody else, or a code that only its owner has, or that end their
 * own caller.
 */
const UNREACHABLE = new Set([
  ...[
    'enrolHost',
    'openLink',
    'setDnsChallenge',
    'issueHostCertificate',
    'getHostMember',
    'admitStandby',
    'completeProviderSignIn',
    'startCompanySignIn',
    'completeCompanySignIn',
    'recoverOwner',
    'renewPageSession',
    'exchangeCliCode',
    'verifyMagicLink',
  ],
  ...[
    'verifySecondFactorSetup',
    'verifySecondFactor',
    'recoverSecondFactor',
    'replaceRecoveryCodes',
    'exchangeToken',
  ],
  ...['resetPassword', 'acceptInvitation', 'revokeInvitation'],
  // The change has to be rehearsed, which takes longer.
  ...['approveChange', 'applyChange', 'undoChange'],
  // The host keeps no archive.
  ...['previewReset', 'startBisection', 'probeBisection', 'endBisection'],
  // Only the gateway's accounts can use them, and the test has one, which soon signs out all its sessions.
  ...['createInvitation', 'changeMemberRole', 'removeMember', 'changePassword'],
  ...['endSession', 'endAllSessions'],
  // Nothing listens at the address of the identity provider, by which nobody has signed in.
  ...['verifyProviderDomain', 'updateTenant', 'replaceOwnerRecoveryCode'],
  // The other operations need the host, and it is no standby.
  ...['removeHost', 'promoteHost'],
  ...NEED_ANOTHER_HOST,
  // There is no deleted branch, and no snapshot.
  ...['restoreBranch', 'updateSnapshot', 'deleteSnapshot'],
]);

/** A table that fits the document's examples of rows. */
const NOTES = `
  create table note (id int primary key, title text, price numeric, tags text[], content bytea, more jsonb);
  insert into note select n, 'Note ' || n, n, array['t'], 'x', '{}' from generate_series(1, 40) n;
  create view title as select title from note;`;

/** @param restart restarts the stack with these limits instead */
export function describeHostileRequests(
  running: () => Stack,
  restart: (limits: Record<string, string>) => Promise<Stack>,
): void {
  let stack: Stack;
  let resources: Resources;
  let bearers: Record<Caller, () => Promise<string> | string | null>;
  /** Operations that succeeded. */
  const done = new Set<string>();
  /** Number of responses of the phase by status. */
  let statuses: Map<number, number>;

  /** Reads are unlimited, because starting the stack polls with them until the host is linked. */
  const LOW_LIMITS = { ...UNLIMITED, LIMIT_WRITES_PER_MINUTE: '5', LIMIT_PUBLIC_PER_MINUTE: '5' };
  const ONE_ADDRESS = { 'cf-connecting-ip': '198.51.100.7' };

  beforeAll(async () => {
    stack = running();
    const { PLATFORM_SECRET } = gatewaySecrets(devFolder(stack.devDir));
    const { access_token, refresh_token } = await signUp(
      { url: stack.url, mails: () => deliveredMails(stack) },
      EMAIL,
    );
    const { sub: account = '', sid } = decodeJwt(access_token ?? '');
    bearers = await bearersOf(PLATFORM_SECRET, account, String(sid));
    const owner = await bearers.owner();
    const platform = await bearers.platform();
    const made = await createResources(new Api(stack.url, owner), new Api(stack.url, platform));
    resources = { ...made, known: { ...made.known, refresh_token: [refresh_token] } };
  });

  /** @param account id of an account of the gateway, with a session */
  async function bearersOf(
    platformSecret: string,
    account: string,
    session: string,
  ): Promise<typeof bearers> {
    const own = ownTokens(stack);
    const token = (options: Partial<TokenOptions>) => tokenOf({ tenant: 'stormy', ...options }, stack.devDir);
    const owner = await token({});
    const known = {
      owner,
      admin: await token({ role: 'admin' }),
      operator: await token({ role: 'operator' }),
      viewer: await token({ role: 'viewer' }),
      reader: await token({ scope: 'read' }),
      'owner of another tenant': await token({ tenant: 'calm' }),
      'user without a tenant': await token({ tenant: null }),
      'own account': await own.access({ tenant: tenantNamed('stormy'), account, session, expiresIn: 3600 }),
      'refresh token': await own.refresh(),
      expired: await token({ expiresIn: -3600 }),
      tampered: owner.replace(/.{20}(?=\.)/, (piece) => piece.toLowerCase()),
      platform: platformSecret,
      garbage: 'v4.public.AAAA.\xff',
      anonymous: null,
    };
    return {
      ...(Object.fromEntries(
        Object.entries(known).map(([caller, bearer]) => [caller, () => bearer]),
      ) as Record<keyof typeof known, () => string | null>),
      // Each token is valid for one sign-in.
      'half signed in': () => own.preAuth({ account }),
    };
  }

  /** Resources for the requests. The host never enrols, because the real one must not be changed. */
  async function createResources(api: Api, platform: Api): Promise<Resources> {
    const { id: project, main_branch } = await api.project('Stormy');
    const made = await api.branch(project, 'made');
    await query((await api.credentials(project, 'made')).direct_url, NOTES);
    const rule = await api.allow(project);
    const host = { name: 'never-there', db_host: 'db.example.com', direct_port: 5432, pooled_port: 6432 };
    const { body: registered } = await platform.post<{ host_id: string }>('/platform/v1/hosts', host);
    const { body: page } = await api.get<{ jobs: { id: string }[]; next_cursor: string }>(
      `/api/v1/projects/${project}/jobs?limit=1`,
    );
    const each = async (length: number, make: (n: number) => Promise<{ id: string }>) =>
      (await Promise.all(Array.from({ length }, (_, n) => make(n)))).map(({ id }) => id);
    const machines = [];
    for (let n = 0; n < 4; n++) machines.push(await createMachines(api, project));
    const provider = await createIdentityProvider(api);
    const change = async (n: number) =>
      (
        await api.post<{ id: string }>(`/api/v1/projects/${project}/changes`, {
          sql: `create table changed_${n} (id int)`,
        })
      ).body;
    return {
      known: {
        project_id: [project],
        branch_id: [made.id, main_branch.id],
        branch_ref: ['made', 'made', made.id, made.id, 'main'],
        source_branch_id: [null, made.id],
        rule_id: [rule.id],
        change_id: await each(2, change),
        user_id: [String(made.created_by)],
        webhook_id: [await api.webhook(project)],
        url: ['http://127.0.0.1:9/'],
        job_id: page.jobs.map(({ id }) => id),
        host_id: [registered.host_id],
        cursor: [page.next_cursor],
        table: ['note', 'note', 'note', 'title'],
        schema: ['public'],
        primary_key: ['id', ['id']],
        id: [1, 2, [3]],
        ids: [[31], [[32]], [33, 34]],
        email: [EMAIL, 'ada@example.com'],
        password: [PASSWORD],
        provider: ['branchgate'],
        provider_id: [provider.provider_id ?? ''],
        domain: [provider.domain ?? ''],
        issuer: ['http://127.0.0.1:9/'],
        redirect_uri: ['http://127.0.0.1:49152/auth/callback'],
        return_to: ['/projects'],
        column: ['title', 'title', 'title', 'price', 'tags', 'content', 'more'],
      },
      expendable: {
        project_id: await each(SPARES, (n) => api.project(`Spare ${n}`)),
        branch_ref: await each(SPARES, (n) => api.branch(project, `spare-${n}`)),
        key_id: machines.map(({ key_id }) => key_id),
        webhook_id: await Promise.all(machines.map(() => api.webhook(project))),
        trust_id: machines.map(({ trust_id }) => trust_id),
        change_id: await each(2, change),
        rule_id: await each(8, (n) => api.allow(project, `203.0.113.${n}/32`)),
      },
    };
  }

  interface SendOptions {
    /** Replace the headers of the requests. */
    headers?: Record<string, string>;
    /** Called with the number of responses so far. */
    onResponse?: (count: number) => void;
  }

  /**
   * Sends the phase's requests, several concurrently.
   * @param permitted 5xx statuses that are no fault
   * @returns the faults in responses, each with its request
   */
  async function sendRequests(
    phase: Phase,
    permitted: number[],
    { headers = {}, onResponse = () => {} }: SendOptions = {},
  ): Promise<string[]> {
    const client = new RawClient(stack.url);
    const seed = SEED + Object.keys(PHASES).indexOf(phase);
    const requests = fc.sample(hostileRequests(resources), { seed, numRuns: PHASES[phase] }).values();
    const faults: string[] = [];
    statuses = new Map();
    let count = 0;
    const lane = async () => {
      for (const made of requests) {
        const request = { ...made, headers: { ...made.headers, ...headers } };
        const fault = await faultOf(client, request, permitted);
        if (fault !== null) faults.push(`${fault}\n  of ${JSON.stringify(request).slice(0, 3000)}`);
        count += 1;
        onResponse(count);
      }
    };
    await Promise.all(Array.from({ length: CONCURRENCY }, lane));
    client.close();
    // The seed reproduces the fault.
    return faults.map((fault) => `${fault}\n  HOSTILE_SEED=${SEED}`);
  }

  /**
   * The stack reaches no source of a list of networks, and no resolver. Passwords wait for a branch that is being created,
   * which another lane may do.
   */
  const IS_PERMITTED =
    /"error":"(?:NETWORK_LIST_UNAVAILABLE|DOMAIN_LOOKUP_FAILED)"|"HOST_BUSY","message":"A branch with unmasked data is being created/;

  const { assets } = workerConfiguration();

  /** The console's files are served for all other paths. */
  function reachesWorker(target: string): boolean {
    const { pathname } = new URL(stack.url + target);
    return assets.run_worker_first.some((rule) =>
      rule.endsWith('*') ? pathname.startsWith(rule.slice(0, -1)) : pathname === rule,
    );
  }

  async function faultOf(client: RawClient, request: HostileRequest, permitted: number[]) {
    const bearer = await bearers[request.caller]();
    const headers = { ...request.headers, ...(bearer !== null && { authorization: `Bearer ${bearer}` }) };
    try {
      const response = await client.send({ ...request, headers });
      const { status } = response;
      statuses.set(status, (statuses.get(status) ?? 0) + 1);
      if (status < 400) done.add(request.operation);
      if (reachesWorker(request.target)) checkResponse(response);
      const isPermitted =
        permitted.includes(status) ||
        IS_PERMITTED.test(response.bodyText) ||
        (status === 503 && NEED_ANOTHER_HOST.includes(request.operation));
      return status >= 500 && !isPermitted ? `${status} ${response.bodyText}` : null;
    } catch (error) {
      return String(error);
    }
  }

  test('the document is the served one', async () => {
    const { body } = await new Api(stack.url, null).get('/api/v1/openapi.json');
    expect(body).toEqual(JSON.parse(JSON.stringify(DESCRIPTION)));
  });

  test('with the whole service up, no response is undocumented or a 5xx', async () => {
    const { pids } = stack.state;
    expect(await sendRequests('with the whole service up', [])).toEqual([]);
    expect(stack.state.pids).toEqual(pids);
    // So many operations succeeded that not everything was refused early.
    const possible = OPERATIONS.filter(({ id }) => !UNREACHABLE.has(id));
    expect(done.size).toBeGreaterThan(possible.length * (IS_NIGHTLY ? 0.85 : 0.33));
  });

  test.runIf(IS_NIGHTLY)('without a host, 503 and 504 are also possible', async () => {
    let disconnected: Promise<void> | undefined;
    let reconnected: Promise<void> | undefined;
    // A request that waits for a started creation also waits for the host.
    const reconnect = () => {
      reconnected ??= Promise.resolve(disconnected).then(() => stack.start('agent'));
    };
    let timer: NodeJS.Timeout | undefined;
    const faults = await sendRequests('without a host', [503, 504], {
      onResponse: (count) => {
        if (count !== 10) return;
        disconnected = stack.kill('agent');
        timer = setTimeout(reconnect, DISCONNECTED_AT_MOST_MS);
      },
    });
    clearTimeout(timer);
    reconnect();
    await reconnected;
    await stack.untilReady();
    expect(faults).toEqual([]);
    expect([...statuses.keys()]).toContain(503);
  });

  test.runIf(IS_NIGHTLY)('over the limits, 429 is also possible', async () => {
    stack = await restart(LOW_LIMITS);
    expect(await sendRequests('over the limits', [], { headers: ONE_ADDRESS })).toEqual([]);
    expect(statuses.get(429)).toBeGreaterThan(PHASES['over the limits'] / 10);
  });

  test('records and host agree afterwards', async () => {
    await eventually(async () => expect(violations(await takeSnapshot(sourcesOf(stack)))).toEqual([]));
  });

  test('no log contains an internal error', () => {
    const linesOf = (name: string) =>
      readFileSync(join(devFolder(stack.devDir).logs, name), 'utf8').split('\n');
    const faults = /"INTERNAL"|uncaught|unhandled|\bat .+:\d+:\d+\)?$/i;
    expect(linesOf('gateway.log').filter((line) => faults.test(line))).toEqual([]);
    expect(linesOf('agent.log').filter((line) => faults.test(line))).toEqual([]);
  });
}
