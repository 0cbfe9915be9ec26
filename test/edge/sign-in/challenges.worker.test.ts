import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { ChallengeKind } from '../../../edge/sign-in/challenge.ts';
import { eventually } from '../../support/eventually.ts';
import { otherCode, readCode } from '../../support/sign-in/sign-in.ts';
import { type ChallengesGateway, startChallengesGateway } from '../../support/worker/challenges-gateway.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const ALL: ChallengeKind[] = ['sign_up', 'invitation', 'magic_link', 'password_reset', 'second_factor'];
const SIGN_UP = { name: 'Ada', passwordHash: 'scrypt$15$8$3$c2FsdA==$aGFzaA==' };
const RIGHT = (kind: ChallengeKind) => ({ ok: true, value: { kind } });
const EMPTY = { keys: [], alarmInMs: null, wrongAttempts: 0 };
const WRONG = { ok: false, failure: 'wrong' };
const NOT_EVALUATED = { ok: false, failure: 'not_evaluated' };

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

const postedMails = () => gateway.mails.posted.map(({ body }) => body);
const mailed = (number: number) =>
  eventually(async () => postedMails()[number - 1] ?? Promise.reject(new Error(`no mail ${number}`)));

/** Starts a challenge and reads its mail. @param number of the mail in this test, counted from 1 */
async function start(kind: ChallengeKind, number = 1, challengeId: string = crypto.randomUUID()) {
  const signUp = kind === 'sign_up' && { signUp: SIGN_UP };
  const invitation = { inviter: 'grace@example.com', role: 'viewer' };
  const { expiresAt } = await challenges.start({ kind, challengeId, mail: 'code', ...signUp, invitation });
  const code = readCode(await mailed(number));
  return { challengeId, code, expiresAt, submission: { challengeId, kinds: ALL, code, ...SIGN_UP } };
}

const rowsOf = async (table: string, column: string) => {
  const select = `select * from ${table} where ${column} = ?`;
  return (await gateway.database.prepare(select).bind(address).all()).results;
};

describe('a code', () => {
  test.each(ALL)('of %s is accepted once', async (kind) => {
    const { submission } = await start(kind);
    const others = ALL.filter((other) => other !== kind);
    expect(await challenges.verify({ ...submission, kinds: others })).toEqual([NOT_EVALUATED]);
    expect(await challenges.verify({ ...submission, challengeId: crypto.randomUUID() })).toEqual([
      NOT_EVALUATED,
    ]);
    expect(await challenges.verify(submission)).toEqual([RIGHT(kind)]);
    expect(await challenges.verify(submission)).toEqual([NOT_EVALUATED]);
  });

  test.each(ALL)('of %s submitted twice concurrently is accepted once', async (kind) => {
    const { submission } = await start(kind);
    const results = await challenges.verify(submission, submission);
    expect(results).toEqual(expect.arrayContaining([RIGHT(kind), NOT_EVALUATED]));
  });

  test('expires after 10 minutes', async () => {
    const one = await start('magic_link');
    const other = await start('magic_link', 2);
    expect(one.expiresAt - gateway.now()).toBeGreaterThan(9 * MINUTE);
    gateway.advance(10 * MINUTE - 5_000);
    expect(await challenges.verify(one.submission)).toEqual([RIGHT('magic_link')]);
    gateway.advance(10_000);
    expect(await challenges.verify(other.submission)).toEqual([NOT_EVALUATED]);
  });

  test('is never accepted when none was mailed', async () => {
    for (const mail of ['none', 'account_exists'] as const) {
      const challengeId = crypto.randomUUID();
      await challenges.start({ kind: 'magic_link', challengeId, mail });
      for (const code of ['', '000000', 'null']) {
        expect(await challenges.verify({ challengeId, kinds: ALL, code })).toEqual([WRONG]);
      }
    }
  });
});

describe('attempts', () => {
  test('five of 100 concurrent wrong codes are evaluated, and then the right code is refused', async () => {
    const { submission, code } = await start('magic_link');
    const guesses = Array.from({ length: 100 }, () => ({ ...submission, code: otherCode(code) }));
    const failures = (await challenges.verify(...guesses)).map((result) =>
      result.ok ? null : result.failure,
    );
    expect(failures.filter((failure) => failure === 'wrong')).toHaveLength(5);
    expect(failures.filter((failure) => failure === 'not_evaluated')).toHaveLength(95);
    expect(await challenges.inspect()).toMatchObject({ wrongAttempts: 5 });
    await challenges.reset();
    expect(await challenges.verify(submission)).toEqual([NOT_EVALUATED]);

    const fresh = await start('magic_link', 2);
    const fourWrong = Array.from({ length: 4 }, () => ({ ...fresh.submission, code: otherCode(fresh.code) }));
    expect((await challenges.verify(...fourWrong, fresh.submission)).at(-1)).toEqual(RIGHT('magic_link'));
  });

  test('are limited to 20 per hour for an address, separately for the second factor', async () => {
    const first = await start('magic_link');
    const startedAt = gateway.now();
    for (let number = 1; number <= 4; number++) {
      const { submission, code } = number === 1 ? first : await start('magic_link', number);
      const wrong = { ...submission, code: otherCode(code) };
      await challenges.verify(wrong, wrong, wrong, wrong, wrong);
    }
    await challenges.reset();
    const spent = await start('magic_link', 5);
    expect(await challenges.verify(spent.submission)).toEqual([NOT_EVALUATED]);
    const second = await start('second_factor', 6);
    expect(await challenges.verify(second.submission)).toEqual([RIGHT('second_factor')]);

    gateway.advance(HOUR - (gateway.now() - startedAt) - 5_000);
    const early = await start('magic_link', 7);
    expect(await challenges.verify(early.submission)).toEqual([NOT_EVALUATED]);
    gateway.advance(10_000);
    expect(await challenges.verify(early.submission)).toEqual([RIGHT('magic_link')]);
  });

  test('are still counted after a new code for the same challenge', async () => {
    const previous = await start('second_factor');
    const wrong = { ...previous.submission, code: otherCode(previous.code) };
    await challenges.verify(wrong, wrong, wrong);
    const { submission } = await start('second_factor', 2, previous.challengeId);
    const again = { ...submission, code: otherCode(submission.code) };
    await challenges.verify(again, again);
    expect(await challenges.verify(submission)).toEqual([NOT_EVALUATED]);
  });
});

describe('mails', () => {
  test('contain the purpose and the lifetime of the code, and no links', async () => {
    const minutes = ALL.filter((kind) => kind !== 'invitation');
    for (const [n, kind] of minutes.entries()) {
      const { code } = await start(kind, n + 1);
      const { to, text, html } = await mailed(n + 1);
      expect(to).toBe(address);
      for (const body of [text, html]) {
        expect(body).toContain(code);
        expect(body).toContain('10 minutes');
        expect(body).toContain('ignore this mail');
        expect(body).not.toMatch(/https?:|href|src|Ada/);
      }
    }
    expect(new Set(postedMails().map(({ text }) => text.split('\n')[0])).size).toBe(minutes.length);
  });

  test('of an invitation name who invites, the role, the invitation and its 7 days', async () => {
    const { code, challengeId } = await start('invitation');
    const { text, html } = await mailed(1);
    for (const part of ['grace@example.com', 'role viewer', challengeId, code, '7 days']) {
      expect(text).toContain(part);
      expect(html).toContain(part);
    }
    expect(`${text}${html}`).not.toMatch(/https?:|href|src/);
  });

  test('inform the owner of an existing account, without a code', async () => {
    await challenges.start({ kind: 'sign_up', challengeId: 'any', mail: 'account_exists', signUp: SIGN_UP });
    const { text, html } = await mailed(1);
    expect(text).toContain('you already have an account');
    expect(`${text}${html}`).not.toMatch(/\d{6}/);
  });

  test('are limited to five in 15 minutes, separately for the second factor', async () => {
    for (let number = 1; number <= 5; number++) await start('magic_link', number);
    const refused = await challenges.start({ kind: 'magic_link', challengeId: 'sixth', mail: 'code' });
    expect(refused.expiresAt - gateway.now()).toBeGreaterThan(9 * MINUTE);
    await start('second_factor', 6);
    gateway.advance(16 * MINUTE);
    await start('magic_link', 7);
    const [last] = postedMails().slice(-1);
    expect(
      postedMails().filter(({ text }) => text.split('\n')[0] === last?.text.split('\n')[0]),
    ).toHaveLength(6);
  });

  test('that are sent late contain a code that expires 10 minutes after sending', async () => {
    gateway.mails.answersWith(503);
    const { submission } = await start('sign_up');
    for (let n = 0; n < 12; n++) {
      gateway.advance(HOUR);
      await challenges.fireAlarm();
      await challenges.reset();
    }
    expect(postedMails().length).toBeGreaterThan(10);
    gateway.mails.answersWith(200);
    gateway.advance(HOUR);
    await challenges.fireAlarm();
    const { length } = postedMails();
    gateway.advance(9 * MINUTE);
    await challenges.fireAlarm();
    expect(postedMails()).toHaveLength(length);
    expect(await challenges.verify(submission)).toEqual([RIGHT('sign_up')]);

    const other = await start('magic_link', length + 1);
    gateway.advance(11 * MINUTE);
    expect(await challenges.verify(other.submission)).toEqual([NOT_EVALUATED]);
  });

  test('that are abandoned remove their challenge', async () => {
    gateway.mails.answersWith(503);
    const { submission } = await start('sign_up');
    gateway.advance(3 * DAY + MINUTE);
    await challenges.fireAlarm();
    expect(await challenges.verify(submission)).toEqual([NOT_EVALUATED]);
    expect(await challenges.inspect()).toEqual(EMPTY);
  });
});

describe('a sign-up', () => {
  const accountRows = () => rowsOf('accounts', 'email');
  const events = () => rowsOf('audit_events', 'actor_email');

  test('creates an account, a tenant and an audit event when its code is submitted', async () => {
    const { submission } = await start('sign_up');
    expect(await accountRows()).toEqual([]);
    const client = { ip: '192.0.2.1', userAgent: 'test', requestId: 'request-1' };
    expect(await challenges.verify({ ...submission, client })).toEqual([RIGHT('sign_up')]);
    const [account] = await accountRows();
    const { name, passwordHash: password_hash } = SIGN_UP;
    expect(account).toMatchObject({ email: address, name, password_hash, role: 'owner' });
    expect(await events()).toMatchObject([
      { name: 'account.created', tenant_id: account?.tenant_id, ip: '192.0.2.1', request_id: 'request-1' },
    ]);
  });

  test('is completed by the same code after the object was aborted', async () => {
    const { submission } = await start('sign_up');
    gateway.injectFault('after_account');
    await expect(challenges.verify(submission)).rejects.toThrow('aborted by the test');
    const [account] = await accountRows();
    expect(account).toBeDefined();
    expect(await challenges.verify(submission)).toEqual([RIGHT('sign_up')]);
    expect(await accountRows()).toEqual([account]);
    expect(await events()).toHaveLength(1);
    expect(await challenges.verify(submission)).toEqual([NOT_EVALUATED]);
  });

  test('consumes no attempt when D1 fails', async () => {
    const { submission } = await start('sign_up');
    for (let n = 0; n < 6; n++) {
      gateway.injectFault('before_account');
      await expect(challenges.verify(submission)).rejects.toThrow('D1 is unavailable');
    }
    expect(await challenges.verify(submission)).toEqual([RIGHT('sign_up')]);
  });

  test('signs in to the existing account when another one was completed first', async () => {
    const one = await start('sign_up');
    const other = await start('sign_up', 2);
    await challenges.verify(one.submission);
    const rows = await accountRows();
    expect(await challenges.verify(other.submission)).toEqual([RIGHT('sign_up')]);
    expect(await accountRows()).toEqual(rows);
    expect(await events()).toHaveLength(1);
  });
});

describe('an invitation', () => {
  const accountRows = () => rowsOf('accounts', 'email');

  /** An open invitation in D1 with its mailed code. */
  async function invitation(number = 1) {
    const started = await start('invitation', number);
    const inviter = crypto.randomUUID();
    const user = 'insert into users values (?, ?, ?, ?, ?, ?, 0, 0, 0)';
    await gateway.database.prepare(user).bind(inviter, 'any', inviter, 'a@b.example', 'owner', 'team').run();
    const row = 'insert into invitations values (?, ?, ?, ?, ?, ?, 0)';
    const expiresAt = gateway.now() + 7 * DAY;
    const values = [started.challengeId, 'team', address, 'viewer', inviter, expiresAt];
    await gateway.database
      .prepare(row)
      .bind(...values)
      .run();
    return started;
  }

  test('is valid for 7 days, and creates the account in the tenant that invited', async () => {
    const { submission, challengeId } = await invitation();
    gateway.advance(7 * DAY - HOUR);
    expect(await challenges.verify(submission)).toEqual([RIGHT('invitation')]);
    expect(await accountRows()).toMatchObject([{ id: challengeId, tenant_id: 'team', role: 'viewer' }]);
    expect(await rowsOf('invitations', 'email')).toEqual([]);
  });

  test('is completed by the same code after the object was aborted', async () => {
    const { submission } = await invitation();
    gateway.injectFault('after_account');
    await expect(challenges.verify(submission)).rejects.toThrow('aborted by the test');
    const rows = await accountRows();
    expect(rows).toHaveLength(1);
    expect(await challenges.verify(submission)).toEqual([RIGHT('invitation')]);
    expect(await accountRows()).toEqual(rows);
    expect(await rowsOf('audit_events', 'actor_email')).toHaveLength(1);
  });

  test('that is repeated sends no second mail, and its code stays valid', async () => {
    const { challengeId, submission } = await invitation();
    const again = { inviter: 'grace@example.com', role: 'viewer' };
    await challenges.start({ kind: 'invitation', challengeId, mail: 'code', invitation: again });
    expect(await challenges.verify(submission)).toEqual([RIGHT('invitation')]);
    const link = await start('magic_link', 2);
    expect(await challenges.verify(link.submission)).toEqual([RIGHT('magic_link')]);
  });

  test('of an address that has got an account meanwhile changes nothing', async () => {
    const { submission } = await invitation();
    const own = await start('sign_up', 2);
    await challenges.verify(own.submission);
    const rows = await accountRows();
    expect(await challenges.verify(submission)).toEqual([RIGHT('invitation')]);
    expect(await accountRows()).toEqual(rows);
  });
});

test('a new password is set by the same code after the object was aborted', async () => {
  const { submission: signUp } = await start('sign_up');
  await challenges.verify(signUp);
  const { submission } = await start('password_reset', 2);
  gateway.injectFault('after_account');
  const attempt = { ...submission, passwordHash: 'another' };
  await expect(challenges.verify(attempt)).rejects.toThrow('aborted by the test');
  expect(await challenges.verify(attempt)).toEqual([RIGHT('password_reset')]);
  expect(await rowsOf('accounts', 'email')).toMatchObject([{ password_hash: 'another' }]);
  expect(await challenges.verify(attempt)).toEqual([NOT_EVALUATED]);
});

describe('storage', () => {
  test('is emptied when nothing is open', async () => {
    await start('sign_up');
    const alarms: number[] = [];
    for (
      let state = await challenges.inspect();
      state.alarmInMs !== null;
      state = await challenges.inspect()
    ) {
      alarms.push(Math.round(state.alarmInMs / MINUTE));
      gateway.advance(state.alarmInMs + 1);
      await challenges.fireAlarm();
    }
    expect(alarms).toEqual([10, 5]);
    expect(await challenges.inspect()).toEqual(EMPTY);
  });

  test('stays empty when codes are submitted for unknown challenges', async () => {
    await challenges.verify({ challengeId: crypto.randomUUID(), kinds: ALL, code: '123456' });
    expect(await challenges.inspect()).toEqual(EMPTY);
  });
});
