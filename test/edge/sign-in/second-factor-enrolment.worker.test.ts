import { eq } from 'drizzle-orm';
import { beforeAll, expect, test } from 'vitest';
import { openDatabase } from '../../../edge/database/database.ts';
import { accounts } from '../../../edge/database/people-schema.ts';
import { auditEvents } from '../../../edge/database/schema.ts';
import { unwrap } from '../../../edge/errors.ts';
import { signIn as signInResult } from '../../../edge/sign-in/first-factor.ts';
import {
  finishSetUp as finishSetUpResult,
  startSetUp as startSetUpResult,
} from '../../../edge/sign-in/second-factor-enrolment.ts';
import { startD1 } from '../../support/records/d1.ts';
import { appCode } from '../../support/sign-in/second-step.ts';
import { signInContext } from '../../support/sign-in/sign-in-context.ts';

const signIn = async (...about: Parameters<typeof signInResult>) => unwrap(await signInResult(...about));

const finishSetUp = async (...about: Parameters<typeof finishSetUpResult>) =>
  unwrap(await finishSetUpResult(...about));
const startSetUp = async (...about: Parameters<typeof startSetUpResult>) =>
  unwrap(await startSetUpResult(...about));

const EMAIL = 'ada@example.com';

let d1: D1Database;

beforeAll(async () => {
  d1 = await startD1();
});

test('an enrolment that a concurrent one precedes is refused and not recorded', async () => {
  let now = new Date();
  const context = signInContext(d1, { now: () => now });
  const { db, settings } = context;
  const id = crypto.randomUUID();
  const account = {
    id,
    email: EMAIL,
    name: 'Ada',
    passwordHash: 'none',
    role: 'owner',
    version: 0,
    tenantId: crypto.randomUUID(),
    createdAt: now,
    updatedAt: now,
  };
  await db.insert(accounts).values(account);
  const { principal } = await signIn(context, { account }, { first_factor: 'password', second_factor: null });
  // A sign-in updates the user at most once a second, immediately before it enrols a factor.
  await d1
    .prepare(
      `create trigger precede after update on users when new.id = '${principal?.userId}' begin
        insert into second_factors (issuer, gid, method, created_at) values (new.issuer, new.gid, 'email', 0);
      end`,
    )
    .run();
  now = new Date(now.getTime() + 2_000);
  const preAuth = {
    user: { issuer: settings.BASE_URL, gid: id, email: EMAIL },
    step: 'setup' as const,
    first_factor: 'password' as const,
    sealed: null,
    version: 0,
    jti: crypto.randomUUID(),
  };
  const secondFactor = { ...context, preAuth };
  const { secret } = await startSetUp(secondFactor);
  await expect(finishSetUp(secondFactor, appCode(secret))).rejects.toMatchObject({
    failure: { code: 'SECOND_FACTOR_ENROLLED' },
  });
  const events = await openDatabase(d1)
    .select()
    .from(auditEvents)
    .where(eq(auditEvents.name, 'second_factor.enrolled'));
  expect(events).toEqual([]);
});
