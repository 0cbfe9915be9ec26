import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { hashPassword } from '../../../edge/crypto/password-hash.ts';
import { openDatabase } from '../../../edge/database/database.ts';
import { accounts } from '../../../edge/database/people-schema.ts';
import { auditEvents, users } from '../../../edge/database/schema.ts';
import { unwrap } from '../../../edge/errors.ts';
import { invite } from '../../../edge/people/invitations.ts';
import {
  finishPasswordReset,
  startMagicLink,
  startPasswordReset,
  startSignUp,
} from '../../../edge/sign-in/email-code.ts';
import { logIn as logInResult } from '../../../edge/sign-in/password-login.ts';
import type { SignInContext } from '../../../edge/sign-in/sign-in-context.ts';
import { startD1 } from '../../support/records/d1.ts';
import { PASSWORD } from '../../support/sign-in/sign-in.ts';
import { signInContext } from '../../support/sign-in/sign-in-context.ts';
import { watchScrypt } from '../../support/watch-scrypt.ts';

const logIn = async (...about: Parameters<typeof logInResult>) => unwrap(await logInResult(...about));

/**
 * The response time must not reveal whether an address has an account, so both cases have to do the same
 * work.
 */

/** What a request has done so far: hashes, D1 statements and calls of objects. */
const work: string[] = [];

const INVITER = {
  gid: 'inviter',
  email: 'inviter@example.com',
  role: 'owner',
  scopes: [],
  service: 'branchgate',
  tenantId: 'team',
  issuedAt: new Date(0),
  expiresAt: new Date(1),
  userId: crypto.randomUUID(),
};
const KNOWN = 'known@example.com';
const UNKNOWN = 'unknown@example.com';

let d1: D1Database;

beforeAll(async () => {
  d1 = await startD1();
  await openDatabase(d1)
    .insert(accounts)
    .values({
      id: crypto.randomUUID(),
      email: KNOWN,
      name: 'Ada',
      passwordHash: unwrap(await hashPassword(PASSWORD, 10)),
      role: 'owner',
      tenantId: crypto.randomUUID(),
      createdAt: new Date(),
      updatedAt: new Date(),
    });
});
beforeAll(async () => {
  const { gid, email, role, tenantId, userId: id, issuedAt } = INVITER;
  const times = { tenantSeenAt: issuedAt, createdAt: issuedAt, updatedAt: issuedAt };
  await openDatabase(d1)
    .insert(users)
    .values({ id, issuer: 'any', gid, email, role, tenantId, ...times });
});
beforeEach(() => watchScrypt((length, { N, r, p }) => work.push(`scrypt(${N}, ${r}, ${p}, ${length})`)));

type SignInRequest = (context: SignInContext, email: string) => Promise<unknown>;

/** The work until the response, and the failure if there is one. */
async function runFor(request: SignInRequest, email: string) {
  work.length = 0;
  const context = signInContext(d1, { work });
  const failure = await request(context, email).then(
    () => null,
    (error) => error.failure,
  );
  const untilResponse = [...work];
  await context.finishBackground();
  return { failure, work: untilResponse };
}

const count = (entries: string[], prefix: string) =>
  entries.filter((entry) => entry.startsWith(prefix)).length;

describe('a known and an unknown address cause the same work', () => {
  // One of the reads is for a provider of the address's domain.
  test.each<[string, SignInRequest, Record<string, number>]>([
    [
      'a login with a wrong password',
      (context, email) => logIn(context, email, 'wrong password'),
      { scrypt: 1, 'D1: select': 3, 'RateLimiter.consume': 2, Challenges: 0 },
    ],
    [
      'a sign-up',
      (context, email) => startSignUp(context, { name: 'Ada', email, password: PASSWORD }),
      { scrypt: 1, 'D1: select': 2, 'RateLimiter.consume': 2, Challenges: 1 },
    ],
    ['a magic link', startMagicLink, { scrypt: 0, 'D1: select': 2, 'RateLimiter.consume': 1, Challenges: 1 }],
    [
      'a request for a new password',
      startPasswordReset,
      { scrypt: 0, 'D1: select': 2, 'RateLimiter.consume': 1, Challenges: 1 },
    ],
    [
      'a new password with a wrong code',
      (context, email) => {
        const code = { email, challengeId: crypto.randomUUID(), code: '123456' };
        return finishPasswordReset(context, code, PASSWORD);
      },
      // The account is looked up for the audit event, concurrently with the response.
      { scrypt: 1, 'D1: select': 2, 'RateLimiter.consume': 1, Challenges: 1 },
    ],
    [
      'an invitation',
      async (context, email) => {
        const {
          id: _,
          expiresAt: _expiresAt,
          createdAt: _createdAt,
          ...row
        } = unwrap(
          await invite(
            context,
            { ...INVITER, issuer: context.settings.BASE_URL },
            { email, role: 'viewer' },
            null,
          ),
        );
        expect(row).toMatchObject({ email, role: 'viewer', tenantId: INVITER.tenantId });
      },
      {
        scrypt: 0,
        'D1: select': 2,
        'D1: insert': 2,
        'D1: delete': 1,
        'RateLimiter.consume': 3,
        Challenges: 1,
      },
    ],
  ])('in %s', async (_case, request, counts) => {
    const known = await runFor(request, KNOWN);
    const unknown = await runFor(request, UNKNOWN);
    expect(unknown).toEqual(known);
    for (const [prefix, times] of Object.entries(counts)) {
      expect(count(known.work, prefix), prefix).toBe(times);
    }
    expect(known.work).toHaveLength(Object.values(counts).reduce((sum, times) => sum + times));
  });
});

test('only the audit event differs, which is stored concurrently with the response', async () => {
  const events = () => openDatabase(d1).select().from(auditEvents);
  const before = (await events()).length;
  await runFor((context, email) => logIn(context, email, 'wrong password'), UNKNOWN);
  expect(await events()).toHaveLength(before);
  await runFor((context, email) => logIn(context, email, 'wrong password'), KNOWN);
  expect((await events()).slice(before)).toMatchObject([{ name: 'sign_in.failed', actorEmail: KNOWN }]);
});
