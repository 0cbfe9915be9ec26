import { afterAll, beforeAll, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { signUp } from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

let gateway: SignInGateway;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
});
afterAll(() => gateway.stop());

test('a token that was used over 10 s ago ends the session and its access token, with an audit event', async () => {
  const renew = (refresh_token: string | null) =>
    new Api(gateway.url, null).post<{ refresh_token: string }>('/api/v1/auth/refresh', { refresh_token });
  const { access_token, refresh_token: first } = await signUp(gateway, 'ada@example.com');
  const { refresh_token: next } = (await renew(first)).body;
  await gateway.database
    .prepare('update refresh_tokens set used_at = used_at - 10001 where used_at is not null')
    .run();
  for (const token of [first, next, first]) {
    expect(refusal(await renew(token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
  }
  expect(refusal(await new Api(gateway.url, access_token).get('/api/v1/projects'))).toEqual([
    401,
    'UNAUTHENTICATED',
  ]);
  const select = "select name from audit_events where name like 'session.%'";
  const { results } = await gateway.database.prepare(select).all();
  expect(results).toEqual([{ name: 'session.stolen' }]);
});
