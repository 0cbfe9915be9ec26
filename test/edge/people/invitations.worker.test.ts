import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { Api } from '../../support/api.ts';
import { accept, inviteAs, newMember, newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import {
  askMagicLink,
  askSignUp,
  logIn,
  mailTo,
  otherCode,
  readCode,
  signUp,
  verifyCode,
} from '../../support/sign-in/sign-in.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const WRONG = [401, 'CODE_WRONG'];

let gateway: SignInGateway;
let owner: TestPerson;
let email: string;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  count += 1;
  email = `grace-${count}@example.com`;
  owner = await newOwner(gateway, `owner-${count}@example.com`);
});

const invite = (role = 'viewer', address = email) =>
  owner.api.post<{ id: string }>('/api/v1/invitations', { email: address, role });
const openOnes = async () =>
  (await owner.api.get<{ invitations: { id: string }[] }>('/api/v1/invitations')).body.invitations;

test('an address that another tenant has invited can be invited, and shows nothing of it', async () => {
  const other = await newOwner(gateway, `other-${count}@example.com`);
  const first = await other.api.post('/api/v1/invitations', { email, role: 'admin' });
  expect(first.status).toBe(201);
  expect((await invite()).status).toBe(201);
  expect(await openOnes()).toHaveLength(1);
});

test('an invitation is listed, and its code creates an account in the tenant with the role', async () => {
  const { id, code } = await inviteAs(owner, gateway, email, 'operator');
  expect(await openOnes()).toMatchObject([{ id, email, role: 'operator', invited_by: owner.userId }]);
  expect(refusal(await accept(gateway, email, id, otherCode(code)))).toEqual(WRONG);
  const { status, body } = await accept(gateway, email, id, code);
  expect([status, body.user]).toMatchObject([200, { email, role: 'operator' }]);
  const me = (await new Api(gateway.url, body.access_token).get('/api/v1/me')).body;
  const ours = (await owner.api.get('/api/v1/me')).body;
  expect(me.tenant_id).toBe(ours.tenant_id);
  expect((await logIn(gateway, email)).status).toBe(200);
  expect(await openOnes()).toEqual([]);
  expect(refusal(await accept(gateway, email, id, code))).toEqual(WRONG);
  const { body: log } = await owner.api.get<{ audit_events: { name: string }[] }>('/api/v1/audit-events');
  const names = log.audit_events.map(({ name }) => name).filter((name) => name.startsWith('invitation.'));
  expect(names).toEqual(['invitation.accepted', 'invitation.created']);
});

test('a revoked invitation creates nothing, and the address can be invited again', async () => {
  const { id, code } = await inviteAs(owner, gateway, email, 'viewer');
  expect(refusal(await invite())).toEqual([409, 'INVITATION_EXISTS']);
  expect((await owner.api.delete(`/api/v1/invitations/${id}`)).status).toBe(204);
  expect(refusal(await owner.api.delete(`/api/v1/invitations/${id}`))).toEqual([404, 'NOT_FOUND']);
  expect(refusal(await accept(gateway, email, id, code))).toEqual(WRONG);
  expect(refusal(await logIn(gateway, email))).toEqual([401, 'CREDENTIALS_WRONG']);
  expect((await invite()).status).toBe(201);
});

test('an invitation that is revoked in D1 alone creates nothing', async () => {
  const { id, code } = await inviteAs(owner, gateway, email, 'viewer');
  await gateway.database.prepare('delete from invitations where id = ?').bind(id).run();
  expect(refusal(await accept(gateway, email, id, code))).toEqual(WRONG);
});

test('a member cannot be invited, and a tenant can invite 50 times an hour', async () => {
  await newMember(owner, gateway, email, 'viewer');
  expect(refusal(await invite())).toEqual([409, 'MEMBER_EXISTS']);
  const { body } = await owner.api.get<{ tenant_id: string }>('/api/v1/me');
  await gateway.consume(bucketOf.invitations(body.tenant_id), 50);
  expect(refusal(await invite('viewer', `x-${email}`))).toEqual([429, 'RATE_LIMITED']);
});

test('an address with an account elsewhere gets a notice without a code, and the caller the same response', async () => {
  await signUp(gateway, email);
  const known = await invite();
  const unknown = await invite('viewer', `x-${email}`);
  const shape = ({ status, body }: typeof known) => [status, Object.keys(body)];
  expect(shape(known)).toEqual(shape(unknown));
  const notice = await mailTo(gateway, email, 2);
  expect(notice.text).toContain('already has an account');
  expect(notice.text).not.toMatch(/\b\d{6}\b/);
  expect(refusal(await accept(gateway, email, known.body.id, '000000'))).toEqual(WRONG);
});

test('an address that got an account after it was invited gets a clear error', async () => {
  const { id, code } = await inviteAs(owner, gateway, email, 'viewer');
  const { body } = await askSignUp(gateway, email);
  const own = readCode(await mailTo(gateway, email, 2));
  expect((await verifyCode(gateway, email, body.verification.challenge_id, own)).status).toBe(200);
  expect(refusal(await accept(gateway, email, id, code))).toEqual([409, 'ACCOUNT_EXISTS']);
});

describe('under an Idempotency-Key', () => {
  const inviteOnce = (role = 'viewer') =>
    owner.api.post<{ id: string }>('/api/v1/invitations', { email, role }, { 'Idempotency-Key': 'invite' });
  const isReplay = ({ headers }: { headers: Headers }) => headers.get('idempotency-replayed') === 'true';

  test('an address is invited once and gets one mail, whatever is repeated', async () => {
    const first = await inviteOnce();
    const { body: me } = await owner.api.get<{ tenant_id: string }>('/api/v1/me');
    await gateway.consume(bucketOf.invitations(me.tenant_id), 50);
    const again = await inviteOnce();
    expect([first.status, isReplay(first)]).toEqual([201, false]);
    expect([again.status, isReplay(again), again.body]).toEqual([201, true, first.body]);
    expect(await openOnes()).toEqual([first.body]);
    expect(refusal(await inviteOnce('operator'))).toEqual([422, 'IDEMPOTENCY_KEY_REUSED']);

    const code = readCode(await mailTo(gateway, email));
    expect((await accept(gateway, email, first.body.id, code)).status).toBe(200);
    expect((await inviteOnce()).body).toEqual(first.body);
    expect(await openOnes()).toEqual([]);
    const { body: link } = await askMagicLink(gateway, email);
    const linkCode = readCode(await mailTo(gateway, email, 2));
    expect((await verifyCode(gateway, email, link.challenge_id, linkCode)).status).toBe(200);
  });

  test('a repetition mails the code if the first request was interrupted before it could', async () => {
    const { body } = await inviteOnce();
    const code = readCode(await mailTo(gateway, email));
    const row = await gateway.database
      .prepare('select * from invitations where id = ?')
      .bind(body.id)
      .first();
    // What an interrupted request leaves: a record without a challenge.
    expect((await owner.api.delete(`/api/v1/invitations/${body.id}`)).status).toBe(204);
    const columns = Object.keys(row ?? {});
    const values = Object.values(row ?? {});
    await gateway.database
      .prepare(`insert into invitations (${columns.join()}) values (${columns.map(() => '?').join()})`)
      .bind(...values)
      .run();
    expect(refusal(await accept(gateway, email, body.id, code))).toEqual(WRONG);
    expect((await inviteOnce()).body).toEqual(body);
    const resent = readCode(await mailTo(gateway, email, 2));
    expect((await accept(gateway, email, body.id, resent)).status).toBe(200);
  });
});

describe('codes', () => {
  test('of eight concurrent guesses five are evaluated, and then the right code is refused', async () => {
    const { id, code } = await inviteAs(owner, gateway, email, 'viewer');
    const guess = (n: number) =>
      accept(gateway, email, id, String((Number(code) + 1 + n) % 1_000_000).padStart(6, '0'));
    const statuses = (await Promise.all(Array.from({ length: 8 }, (_, n) => guess(n)))).map(
      ({ status }) => status,
    );
    expect(new Set(statuses)).toEqual(new Set([401]));
    expect(refusal(await accept(gateway, email, id, code))).toEqual(WRONG);
  });

  test('of two concurrent acceptances one creates the account', async () => {
    const { id, code } = await inviteAs(owner, gateway, email, 'viewer');
    const both = await Promise.all([accept(gateway, email, id, code), accept(gateway, email, id, code)]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 401]);
  });

  test('are refused for another purpose, another address and another invitation', async () => {
    const one = await inviteAs(owner, gateway, email, 'viewer');
    const other = await inviteAs(owner, gateway, `x-${email}`, 'viewer');
    const fields = { email, challenge_id: one.id, code: one.code };
    const anybody = new Api(gateway.url, null);
    const reset = { ...fields, new_password: 'another password' };
    expect(refusal(await verifyCode(gateway, email, one.id, one.code))).toEqual(WRONG);
    expect(refusal(await anybody.post('/api/v1/auth/password/reset', reset))).toEqual(WRONG);
    expect(refusal(await accept(gateway, `x-${email}`, one.id, one.code))).toEqual(WRONG);
    expect(refusal(await accept(gateway, `x-${email}`, other.id, one.code))).toEqual(WRONG);
    const { body: link } = await askMagicLink(gateway, owner.email);
    const linkCode = readCode(await mailTo(gateway, owner.email, 2));
    expect(refusal(await accept(gateway, owner.email, link.challenge_id, linkCode))).toEqual(WRONG);
    expect((await accept(gateway, email, one.id, one.code)).status).toBe(200);
  });
});
