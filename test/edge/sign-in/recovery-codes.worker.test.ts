import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { appCode, enrolledAccount, refusal, stepAfterPassword } from '../../support/sign-in/second-step.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

const WRONG = [401, 'CODE_WRONG'];
const NO_CODE = 'aaaa-bbbb-cccc-dddd';

let gateway: SignInGateway;
let email: string;
let count = 0;

beforeAll(async () => {
  gateway = await startSignInGateway();
});
afterAll(() => gateway.stop());
beforeEach(() => {
  count += 1;
  email = `ada-${count}@example.com`;
});

const step = (address = email) => stepAfterPassword(gateway, address);
const namesOf = async () => {
  const select = 'select name from audit_events where actor_email = ? order by rowid desc limit 2';
  const { results } = await gateway.database.prepare(select).bind(email).all<{ name: string }>();
  return results.map(({ name }) => name);
};

describe('a recovery code', () => {
  test('is one of ten, signs in once, in any spelling, and is stored as a hash', async () => {
    const { recoveryCodes } = await enrolledAccount(gateway, email);
    expect(recoveryCodes).toHaveLength(10);
    for (const code of recoveryCodes) expect(code).toMatch(/^[a-z2-7]{4}(-[a-z2-7]{4}){3}$/);
    const [first = '', second = ''] = recoveryCodes;
    expect((await (await step()).recover(first)).body.user?.email).toBe(email);
    expect(refusal(await (await step()).recover(first))).toEqual(WRONG);
    const { status } = await (await step()).recover(` ${second.replaceAll('-', ' ').toUpperCase()}`);
    expect(status).toBe(200);
    const { results } = await gateway.database.prepare('select * from recovery_codes').all();
    for (const code of recoveryCodes) expect(JSON.stringify(results)).not.toContain(code.replaceAll('-', ''));
    expect((await step()).login.requires_2fa).toBe(true);
  });

  test('submitted twice concurrently is accepted once', async () => {
    const {
      recoveryCodes: [code = ''],
    } = await enrolledAccount(gateway, email);
    const [one, other] = [await step(), await step()];
    const both = await Promise.all([one.recover(code), other.recover(code)]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 401]);
  });

  test('of another account is refused, and five concurrent guesses use up the token', async () => {
    const {
      recoveryCodes: [mine = ''],
    } = await enrolledAccount(gateway, email);
    const {
      recoveryCodes: [other = ''],
    } = await enrolledAccount(gateway, `x-${email}`);
    expect(refusal(await (await step()).recover(other))).toEqual(WRONG);
    const guessed = await step();
    const guesses = await Promise.all(Array.from({ length: 20 }, () => guessed.recover(NO_CODE)));
    expect(new Set(guesses.map(({ status }) => status))).toEqual(new Set([401]));
    expect(refusal(await guessed.recover(mine))).toEqual(WRONG);
    expect((await (await step()).recover(mine)).status).toBe(200);
  });

  test('is no code of the app, and takes an enrolled factor', async () => {
    const {
      recoveryCodes: [code = ''],
    } = await enrolledAccount(gateway, email);
    expect(refusal(await (await step()).verifyLogin(code))).toEqual([422, 'VALIDATION_FAILED']);
    expect((await (await step()).recover(code, true)).status).toBe(200);
    expect(await namesOf()).toEqual(['sign_in.succeeded', 'second_factor.removed']);
    const next = await step();
    expect(next.login.requires_2fa_setup).toBe(true);
    expect(refusal(await next.recover(code))).toEqual([403, 'FORBIDDEN', 'second factor']);
    expect(
      (
        await gateway.database
          .prepare('select * from recovery_codes where gid = (select id from accounts where email = ?)')
          .bind(email)
          .all()
      ).results,
    ).toEqual([]);
  });
});

test('new recovery codes take a code of the factor, and replace the earlier ones', async () => {
  const {
    secret,
    usedCode,
    recoveryCodes: [old = ''],
  } = await enrolledAccount(gateway, email);
  expect(refusal(await (await step()).replaceCodes(usedCode))).toEqual(WRONG);
  const { status, body } = await (await step()).replaceCodes(appCode(secret, 1));
  expect([status, body.recovery_codes.length, body.user?.email]).toEqual([200, 10, email]);
  expect(await namesOf()).toEqual(['sign_in.succeeded', 'recovery_codes.replaced']);
  expect(refusal(await (await step()).recover(old))).toEqual(WRONG);
  expect((await (await step()).recover(body.recovery_codes[9] ?? '')).status).toBe(200);
});
