import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createClient } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { Api, type ApiResponse } from '../../support/api.ts';
import { callOperation, type Ids, OPERATIONS } from '../../support/operations.ts';
import { startMailServer } from '../../support/sign-in/mail-server.ts';
import { newMember, newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import type { SignInSite } from '../../support/sign-in/sign-in.ts';
import { CATCH_UP_HEADER } from '../../support/worker/trips.ts';
import { startTripsGateway, type TripsGateway, tallyOf } from '../../support/worker/trips-gateway.ts';

const BOOKMARK = 'X-Branchgate-Bookmark';
/** Any copy is new enough. */
const OLDEST = '00000000';
/** The replica repeats nothing by itself while the tests run. */
const LAG_MS = 3_600_000;

const READS = OPERATIONS.filter(({ method, access }) => method === 'GET' && access === 'user');
/** Reads of the newest state, and why. */
const OF_PRIMARY: Record<string, string> = {
  getCredentials: 'passwords must not be those of before a rotation, and the view is audited',
  describeTable: 'a project that has just moved shows nothing of its database',
  diffBranch: 'as describeTable',
  getRehearsal: 'as describeTable',
  getTrial: 'its job has just begun',
  listChangedRows: 'as describeTable',
  listRows: 'as describeTable',
  listTables: 'as describeTable',
  previewReset: 'it begins a job',
  streamEvents: 'the coordinator of the project admits to streams',
};

let gateway: TripsGateway;
let mailServer: Awaited<ReturnType<typeof startMailServer>>;
let ids: Ids;
let project: string;

beforeAll(async () => {
  mailServer = await startMailServer();
  const settings = { REPLICA_LAG_MS: LAG_MS, MAIL_API_URL: mailServer.url, TWO_FACTOR: 'off' };
  gateway = await startTripsGateway(0, settings, { isolates: 2 });
  ids = await gateway.makeThings();
  project = `/api/v1/projects/${ids.project_id}`;
});
afterAll(async () => {
  await gateway?.stop();
  await mailServer?.stop();
});

const at = (bookmark: string) => ({ headers: { [BOOKMARK]: bookmark } });
const bookmarkOf = ({ headers }: { headers: Headers }) => headers.get(BOOKMARK) ?? '';
/** The copies of D1 that a request has used. */
const copiesOf = (response: { headers: Headers }) => [
  ...new Set(tallyOf(response).trips.flatMap(({ to }) => /^(DB|REPLICA)\./.exec(to)?.[1] ?? [])),
];
const catchUp = () => gateway.api.get('/api/v1/me', { headers: { [CATCH_UP_HEADER]: '1' } });

/** A client that has seen nothing new. */
class OldApi extends Api {
  override call<B = Record<string, unknown>>(method: string, path: string): Promise<ApiResponse<B>> {
    return super.call(method, path, at(OLDEST));
  }
}

test('a client reads what it has written from a replica that is late', async () => {
  const written = await gateway.api.patch(project, { name: 'Renamed' });
  const renamed = { status: 200, body: { name: 'Renamed' } };
  expect(await gateway.api.get(project)).toMatchObject(renamed);
  const seen = await gateway.api.get(project, at(bookmarkOf(written)));
  expect(seen).toMatchObject(renamed);
  expect(await gateway.api.get(project, at(bookmarkOf(seen)))).toMatchObject(renamed);
  // The replica does not even know the project.
  const late = await gateway.api.get(project, at(OLDEST));
  expect([late.status, copiesOf(late)]).toEqual([404, expect.arrayContaining(['REPLICA'])]);

  await catchUp();
  const near = await gateway.api.get(project, at(bookmarkOf(seen)));
  expect(near).toMatchObject(renamed);
  expect(copiesOf(near)).toEqual(['REPLICA']);
  expect(bookmarkOf(near) >= bookmarkOf(seen)).toBe(true);
});

test('the client package does so by itself, and then reads near', async () => {
  const responses: Response[] = [];
  const { api } = createClient({
    url: gateway.url,
    token: gateway.token,
    fetch: async (request) => {
      const response = await fetch(request);
      responses.push(response);
      return response;
    },
  });
  const path = { params: { path: { project_id: ids.project_id ?? '' } } };
  const named = { name: 'By the package' };
  await dataOf(api.PATCH('/api/v1/projects/{project_id}', { ...path, body: named }));
  const read = () => dataOf(api.GET('/api/v1/projects/{project_id}', path));
  expect(await read()).toMatchObject(named);
  expect(await read()).toMatchObject(named);
  await catchUp();
  expect(await read()).toMatchObject(named);
  expect(responses.slice(1).map(copiesOf)).toEqual([['DB'], ['DB'], ['REPLICA']]);
});

describe('an owner who has seen nothing new reads near', () => {
  beforeAll(() => catchUp());

  test.each(READS)('$id', async (operation) => {
    const response = await callOperation(new OldApi(gateway.url, gateway.token), operation, ids);
    const expected = operation.id in OF_PRIMARY ? expect.arrayContaining(['DB']) : ['REPLICA'];
    expect(copiesOf(response)).toEqual(expected);
  });
});

test('who sees a project because it is shared reads the newest state', async () => {
  const token = await gateway.tokenOf({ gid: 'operator', role: 'operator' });
  const { id } = await new Api(gateway.url, token).project('Own');
  const response = await new OldApi(gateway.url, token).get(`/api/v1/projects/${id}`);
  expect([response.status, copiesOf(response)]).toEqual([200, ['DB']]);
});

describe('a right that has ended gives nothing, although the replica still has it', () => {
  let site: SignInSite;
  let owner: TestPerson;
  /** An isolate that has seen no caller and so remembers none. */
  let elsewhere: string;
  let path: string;
  let count = 0;
  beforeAll(async () => {
    site = { url: gateway.url, mails: () => mailServer.posted.map(({ body }) => body) };
    elsewhere = await gateway.isolateUrl(1);
    owner = await newOwner(site, 'owner@example.com');
    path = `/api/v1/projects/${(await owner.api.project('Secret')).id}`;
  });

  const member = (role: string) => newMember(owner, site, `member-${count++}@example.com`, role);
  const tokenOf = ({ login }: TestPerson) => login.access_token ?? '';
  const read = (url: string, token: string) => new OldApi(url, token).get(path);
  /** What it finds from the isolate that does not know it, once `end` has taken the right. */
  async function statusOnce(token: string, copies: string[], end: () => Promise<{ status: number }>) {
    await catchUp();
    const before = await read(gateway.url, token);
    expect([before.status, copiesOf(before)]).toEqual([200, expect.arrayContaining(copies)]);
    expect((await end()).status).toBeLessThan(300);
    return (await read(elsewhere, token)).status;
  }

  test('of a removed member', async () => {
    const admin = await member('admin');
    const remove = () => owner.api.delete(`/api/v1/members/${admin.userId}`);
    expect(await statusOnce(tokenOf(admin), ['REPLICA'], remove)).toBe(401);
  });

  test('of a member with a lesser role, whom the project is not shared with', async () => {
    const admin = await member('admin');
    const demote = () => owner.api.patch(`/api/v1/members/${admin.userId}`, { role: 'viewer' });
    expect(await statusOnce(tokenOf(admin), ['REPLICA'], demote)).toBe(404);
  });

  test('of a member whom the project is no longer shared with', async () => {
    const viewer = await member('viewer');
    const share = `${path}/members/${viewer.userId}`;
    expect((await owner.api.call('PUT', share, { body: { role: 'viewer' } })).status).toBe(200);
    expect(await statusOnce(tokenOf(viewer), ['DB'], () => owner.api.delete(share))).toBe(404);
  });

  test('of a session that was signed out', async () => {
    const admin = await member('admin');
    const { refresh_token } = admin.login;
    const signOut = () => admin.api.post('/api/v1/auth/logout', { refresh_token });
    expect(await statusOnce(tokenOf(admin), ['REPLICA'], signOut)).toBe(401);
  });

  test('of a deleted key', async () => {
    const wanted = { name: 'Leaked', role: 'owner', scopes: ['branchgate:read'], expires_in_days: 1 };
    const { body } = await owner.api.post<{ id: string; key: string }>('/api/v1/api-keys', wanted);
    expect(
      await statusOnce(body.key, ['REPLICA'], () => owner.api.delete(`/api/v1/api-keys/${body.id}`)),
    ).toBe(401);
  });
});

test('a text that is no bookmark is refused', async () => {
  const refused = await gateway.api.get(project, at('no bookmark; really'));
  expect(refused.body).toMatchObject({ error: 'VALIDATION_FAILED', details: [{ path: BOOKMARK }] });
});
