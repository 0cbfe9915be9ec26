import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { newOwner, personOf, type TestPerson } from '../../support/sign-in/people.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { type LoginBody, logIn, PASSWORD } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

interface SessionBody {
  id: string;
  ip: string;
  user_agent: string;
  is_current: boolean;
}

let gateway: SignInGateway;
let ada: TestPerson;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  count += 1;
  ada = await newOwner(gateway, `ada-${count}@example.com`);
});

/** Signs in on another device. */
async function elsewhere(): Promise<TestPerson> {
  const headers = { 'CF-Connecting-IP': '192.0.2.7', 'User-Agent': 'phone' };
  const body = { email: ada.email, password: PASSWORD };
  const response = await new Api(gateway.url, null).post<TestPerson['login']>(
    '/api/v1/auth/login',
    body,
    headers,
  );
  return personOf(gateway, ada.email, response.body);
}
const sessionsOf = async ({ api }: TestPerson) =>
  (await api.get<{ sessions: SessionBody[] }>('/api/v1/auth/sessions')).body.sessions;
const renew = ({ login: { refresh_token } }: { login: Pick<LoginBody, 'refresh_token'> }) =>
  new Api(gateway.url, null).post<Pick<LoginBody, 'refresh_token'>>('/api/v1/auth/refresh', {
    refresh_token,
  });
const ENDED = [401, 'REFRESH_TOKEN_WRONG'];
const UNKNOWN = [404, 'NOT_FOUND'];

test('the list has every sign-in with its client, and says which one is this', async () => {
  const phone = await elsewhere();
  const listed = await sessionsOf(ada);
  expect(listed).toMatchObject([
    { ip: '192.0.2.7', user_agent: 'phone', is_current: false },
    { is_current: true },
  ]);
  expect((await sessionsOf(phone)).map(({ is_current }) => is_current)).toEqual([true, false]);
  await renew(phone);
  expect(await sessionsOf(ada)).toHaveLength(2);
});

test('one session is signed out, and its unused access token is refused', async () => {
  const phone = await elsewhere();
  const [{ id } = { id: '' }] = await sessionsOf(ada);
  expect((await ada.api.delete(`/api/v1/auth/sessions/${id}`)).status).toBe(204);
  expect(refusal(await renew(phone))).toEqual(ENDED);
  expect(refusal(await phone.api.get('/api/v1/me'))).toEqual([401, 'UNAUTHENTICATED']);
  expect((await renew(ada)).status).toBe(200);
  expect(refusal(await ada.api.delete(`/api/v1/auth/sessions/${id}`))).toEqual(UNKNOWN);
});

test('the session of another account is unknown', async () => {
  const eve = await newOwner(gateway, `eve-${count}@example.com`);
  const [{ id } = { id: '' }] = await sessionsOf(ada);
  expect(refusal(await eve.api.delete(`/api/v1/auth/sessions/${id}`))).toEqual(UNKNOWN);
  expect((await renew(ada)).status).toBe(200);
});

test('all sessions are signed out, with one audit event', async () => {
  const phone = await elsewhere();
  expect((await ada.api.delete('/api/v1/auth/sessions')).status).toBe(204);
  for (const session of [ada, phone]) expect(refusal(await renew(session))).toEqual(ENDED);
  expect((await logIn(gateway, ada.email)).status).toBe(200);
  const select = "select metadata from audit_events where name = 'session.ended' and actor_email = ?";
  const { results } = await gateway.database.prepare(select).bind(ada.email).all();
  expect(results).toEqual([{ metadata: '{"session_id":"all"}' }]);
});

test('a token that was used over 10 s ago ends the session and its access token, with an audit event', async () => {
  const renewed = await renew(ada);
  await gateway.database
    .prepare('update refresh_tokens set used_at = used_at - 10001 where used_at is not null')
    .run();
  const first = ada.login.refresh_token;
  const next = renewed.body.refresh_token;
  for (const refresh_token of [first, next, first])
    expect(refusal(await renew({ login: { refresh_token } }))).toEqual(ENDED);
  expect(refusal(await ada.api.get('/api/v1/projects'))).toEqual([401, 'UNAUTHENTICATED']);
  const select = "select name from audit_events where name like 'session.%' and actor_email = ?";
  const { results } = await gateway.database.prepare(select).bind(ada.email).all();
  expect(results).toEqual([{ name: 'session.stolen' }]);
});
