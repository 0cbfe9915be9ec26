import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { ChallengeKind } from '../../../../edge/sign-in/email-codes/challenge.ts';
import { eventually } from '../../../support/eventually.ts';
import { otherCode, readCode } from '../../../support/sign-in/sign-in.ts';
import {
  type ChallengesGateway,
  startChallengesGateway,
} from '../../../support/worker/challenges-gateway.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const ALL: ChallengeKind[] = ['sign_up', 'magic_link', 'second_factor'];
const SIGN_UP = { name: 'Ada', passwordHash: 'scrypt$15$8$3$c2FsdA==$aGFzaA==' };
const RIGHT = (kind: ChallengeKind) => ({ outcome: 'right', kind });
const NOTHING = { kept: [], alarmInMs: null, wrongTries: 0 };
const WRONG = { outcome: 'wrong' };
const NOT_LOOKED_AT = { outcome: 'not_looked_at' };

let gateway: ChallengesGateway;
let address: string;
let challenges: ReturnType<ChallengesGateway['of']>;

beforeAll(async () => {
  gateway = await startChallengesGateway();
});
afterAll(() => gateway?.stop());
beforeEach(() => {
  gateway.mails.posted.length = 0;
  gateway.mails.answersWith(200);
  address = `${crypto.randomUUID()}@example.com`;
  challenges = gateway.of(address);
});

const posted = () => gateway.mails.posted.map(({ body }) => body);
const mailed = (number: number) =>
  eventually(async () => posted()[number - 1] ?? Promise.reject(new Error(`no mail ${number}`)));

/** @param number of the mail in this test, counted from 1 */
async function begin(kind: ChallengeKind, number = 1, challengeId: string = crypto.randomUUID()) {
  const signUp = kind === 'sign_up' && { signUp: SIGN_UP };
  const { expiresAt } = await challenges.start({ kind, challengeId, mail: 'code', ...signUp });
  const code = readCode(await mailed(number));
  return { challengeId, code, expiresAt, answer: { challengeId, kinds: ALL, code } };
}

const rowsOf = async (table: string, column: string) => {
  const select = `select * from ${table} where ${column} = ?`;
  return (await gateway.database.prepare(select).bind(address).all()).results;
};

describe('a code', () => {
  test.each(ALL)('of %s is right once', async (kind) => {
    const { answer } = await begin(kind);
    const others = ALL.filter((other) => other !== kind);
    expect(await challenges.verify({ ...answer, kinds: others })).toEqual([NOT_LOOKED_AT]);
    expect(await challenges.verify({ ...answer, challengeId: crypto.randomUUID() })).toEqual([NOT_LOOKED_AT]);
    expect(await challenges.verify(answer)).toEqual([RIGHT(kind)]);
    expect(await challenges.verify(answer)).toEqual([NOT_LOOKED_AT]);
  });

  test.each(ALL)('of %s brought by two at once is right for one', async (kind) => {
    const { answer } = await begin(kind);
    const outcomes = await challenges.verify(answer, answer);
    expect(outcomes).toEqual(expect.arrayContaining([RIGHT(kind), NOT_LOOKED_AT]));
  });

  test('holds 10 minutes', async () => {
    const [one, other] = [await begin('magic_link'), await begin('magic_link', 2)];
    expect(one.expiresAt - gateway.now()).toBeGreaterThan(9 * MINUTE);
    gateway.pass(10 * MINUTE - 5_000);
    expect(await challenges.verify(one.answer)).toEqual([RIGHT('magic_link')]);
    gateway.pass(10_000);
    expect(await challenges.verify(other.answer)).toEqual([NOT_LOOKED_AT]);
  });

  test('is right for nobody where none was mailed', async () => {
    for (const mail of ['none', 'account_exists'] as const) {
      const challengeId = crypto.randomUUID();
      await challenges.start({ kind: 'magic_link', challengeId, mail });
      for (const code of ['', '000000', 'null']) {
        expect(await challenges.verify({ challengeId, kinds: ALL, code })).toEqual([WRONG]);
      }
    }
  });
});

describe('tries', () => {
  test('100 wrong codes at once: five are looked at, and the right one comes too late', async () => {
    const { answer, code } = await begin('magic_link');
    const crowd = Array.from({ length: 100 }, () => ({ ...answer, code: otherCode(code) }));
    const outcomes = await challenges.verify(...crowd);
    expect(outcomes.filter(({ outcome }) => outcome === 'wrong')).toHaveLength(5);
    expect(outcomes.filter(({ outcome }) => outcome === 'not_looked_at')).toHaveLength(95);
    expect(await challenges.inspect()).toMatchObject({ wrongTries: 5 });
    await challenges.reset();
    expect(await challenges.verify(answer)).toEqual([NOT_LOOKED_AT]);

    const fresh = await begin('magic_link', 2);
    const guesses = Array.from({ length: 4 }, () => ({ ...fresh.answer, code: otherCode(fresh.code) }));
    expect((await challenges.verify(...guesses, fresh.answer)).at(-1)).toEqual(RIGHT('magic_link'));
  });

  test('of an address are 20 an hour, whatever the challenge; the second factor has its own', async () => {
    const first = await begin('magic_link');
    const start = gateway.now();
    for (let number = 1; number <= 4; number++) {
      const { answer, code } = number === 1 ? first : await begin('magic_link', number);
      const wrong = { ...answer, code: otherCode(code) };
      await challenges.verify(wrong, wrong, wrong, wrong, wrong);
    }
    await challenges.reset();
    const spent = await begin('magic_link', 5);
    expect(await challenges.verify(spent.answer)).toEqual([NOT_LOOKED_AT]);
    const second = await begin('second_factor', 6);
    expect(await challenges.verify(second.answer)).toEqual([RIGHT('second_factor')]);

    gateway.pass(HOUR - (gateway.now() - start) - 5_000);
    const early = await begin('magic_link', 7);
    expect(await challenges.verify(early.answer)).toEqual([NOT_LOOKED_AT]);
    gateway.pass(10_000);
    expect(await challenges.verify(early.answer)).toEqual([RIGHT('magic_link')]);
  });

  test('go on with a new code of the same challenge', async () => {
    const former = await begin('second_factor');
    const wrong = { ...former.answer, code: otherCode(former.code) };
    await challenges.verify(wrong, wrong, wrong);
    const { answer } = await begin('second_factor', 2, former.challengeId);
    const again = { ...answer, code: otherCode(answer.code) };
    await challenges.verify(again, again);
    expect(await challenges.verify(answer)).toEqual([NOT_LOOKED_AT]);
  });
});

describe('mails', () => {
  test('say what the code is for, how long it holds, and load nothing', async () => {
    for (const [n, kind] of ALL.entries()) {
      const { code } = await begin(kind, n + 1);
      const { to, text, html } = await mailed(n + 1);
      expect(to).toBe(address);
      for (const body of [text, html]) {
        expect(body).toContain(code);
        expect(body).toContain('10 minutes');
        expect(body).toContain('ignore this mail');
        expect(body).not.toMatch(/https?:|href|src|Ada/);
      }
    }
    expect(new Set(posted().map(({ text }) => text.split('\n')[0])).size).toBe(3);
  });

  test('an address that has an account is told so, without a code', async () => {
    await challenges.start({ kind: 'sign_up', challengeId: 'any', mail: 'account_exists', signUp: SIGN_UP });
    const { text, html } = await mailed(1);
    expect(text).toContain('You have an account already');
    expect(`${text}${html}`).not.toMatch(/\d{6}/);
  });

  test('are five in a quarter of an hour, those of the second factor counted apart', async () => {
    for (let number = 1; number <= 5; number++) await begin('magic_link', number);
    const refused = await challenges.start({ kind: 'magic_link', challengeId: 'sixth', mail: 'code' });
    expect(refused.expiresAt - gateway.now()).toBeGreaterThan(9 * MINUTE);
    await begin('second_factor', 6);
    gateway.pass(16 * MINUTE);
    await begin('magic_link', 7);
    const [last] = posted().slice(-1);
    expect(posted().filter(({ text }) => text.split('\n')[0] === last?.text.split('\n')[0])).toHaveLength(6);
  });

  test('that come late bring a code that holds 10 minutes from then', async () => {
    gateway.mails.answersWith(503);
    const { answer } = await begin('sign_up');
    for (let n = 0; n < 12; n++) {
      gateway.pass(HOUR);
      await challenges.wake();
      await challenges.reset();
    }
    expect(posted().length).toBeGreaterThan(10);
    gateway.mails.answersWith(200);
    gateway.pass(HOUR);
    await challenges.wake();
    const { length } = posted();
    gateway.pass(9 * MINUTE);
    await challenges.wake();
    expect(posted()).toHaveLength(length);
    expect(await challenges.verify(answer)).toEqual([RIGHT('sign_up')]);

    const other = await begin('magic_link', length + 1);
    gateway.pass(11 * MINUTE);
    expect(await challenges.verify(other.answer)).toEqual([NOT_LOOKED_AT]);
  });

  test('that are given up take their challenge with them', async () => {
    gateway.mails.answersWith(503);
    const { answer } = await begin('sign_up');
    gateway.pass(3 * DAY + MINUTE);
    await challenges.wake();
    expect(await challenges.verify(answer)).toEqual([NOT_LOOKED_AT]);
    expect(await challenges.inspect()).toEqual(NOTHING);
  });
});

describe('a sign-up', () => {
  const accountRows = () => rowsOf('accounts', 'email');
  const events = () => rowsOf('audit_events', 'actor_email');

  test('makes an account and a tenant when its code is brought, and records it', async () => {
    const { answer } = await begin('sign_up');
    expect(await accountRows()).toEqual([]);
    const from = { ip: '192.0.2.1', userAgent: 'test', requestId: 'request-1' };
    expect(await challenges.verify({ ...answer, from })).toEqual([RIGHT('sign_up')]);
    const [account] = await accountRows();
    const { name, passwordHash: password_hash } = SIGN_UP;
    expect(account).toMatchObject({ email: address, name, password_hash, role: 'owner' });
    expect(await events()).toMatchObject([
      { name: 'account.created', tenant_id: account?.tenant_id, ip: '192.0.2.1', request_id: 'request-1' },
    ]);
  });

  test('whose object dies when the account is made is finished by the same code', async () => {
    const { answer } = await begin('sign_up');
    gateway.plant('after_account');
    await expect(challenges.verify(answer)).rejects.toThrow('killed by the test');
    const [account] = await accountRows();
    expect(account).toBeDefined();
    expect(await challenges.verify(answer)).toEqual([RIGHT('sign_up')]);
    expect(await accountRows()).toEqual([account]);
    expect(await events()).toHaveLength(1);
    expect(await challenges.verify(answer)).toEqual([NOT_LOOKED_AT]);
  });

  test('that could not be recorded costs no try', async () => {
    const { answer } = await begin('sign_up');
    for (let n = 0; n < 6; n++) {
      gateway.plant('before_account');
      await expect(challenges.verify(answer)).rejects.toThrow('D1 is away');
    }
    expect(await challenges.verify(answer)).toEqual([RIGHT('sign_up')]);
  });

  test('beside another of the same address signs in to the first one and changes nothing', async () => {
    const [one, other] = [await begin('sign_up'), await begin('sign_up', 2)];
    await challenges.verify(one.answer);
    const rows = await accountRows();
    expect(await challenges.verify(other.answer)).toEqual([RIGHT('sign_up')]);
    expect(await accountRows()).toEqual(rows);
    expect(await events()).toHaveLength(1);
  });
});

describe('storage', () => {
  test('empties itself when nothing is open', async () => {
    await begin('sign_up');
    const pauses: number[] = [];
    for (let left = await challenges.inspect(); left.alarmInMs !== null; left = await challenges.inspect()) {
      pauses.push(Math.round(left.alarmInMs / MINUTE));
      gateway.pass(left.alarmInMs + 1);
      await challenges.wake();
    }
    expect(pauses).toEqual([10, 5]);
    expect(await challenges.inspect()).toEqual(NOTHING);
  });

  test('stays empty when codes come for what was never opened', async () => {
    await challenges.verify({ challengeId: crypto.randomUUID(), kinds: ALL, code: '123456' });
    expect(await challenges.inspect()).toEqual(NOTHING);
  });
});
