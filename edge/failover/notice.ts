import { and, eq } from 'drizzle-orm';
import { type Coordinators, coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { type DatabaseBinding, openDatabase } from '../database/database.ts';
import { projects } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import { repeatIfLost } from '../lost-object.ts';
import { plainMail } from '../mail/mail.ts';
import { membersOf } from '../people/members.ts';
import { readSettings } from '../settings.ts';

/** Mails to one tenant. Each names all its projects on the host. */
const OWNERS_MAX = 20;
/** Tenants of one call: a Worker has a bound for its subrequests. */
const TENANTS_AT_A_TIME = 20;

const owesNoticeOn = (hostId: string) => and(eq(projects.hostId, hostId), eq(projects.owesNotice, true));

/**
 * Informs the tenants of a promoted standby until when their commits survived: by an event of each project, and a mail to the
 * owners. Each tenant is claimed before its mails are sent, so nobody gets them twice.
 * @returns whether tenants are left for the next call
 */
export async function notifyTenants(
  env: DatabaseBinding & Coordinators,
  hostId: string,
  survivedUntil: string | null,
): Promise<boolean> {
  const db = openDatabase(env.DB);
  const tenants = await db
    .selectDistinct({ tenantId: projects.tenantId })
    .from(projects)
    .where(owesNoticeOn(hostId))
    .limit(TENANTS_AT_A_TIME);
  for (const { tenantId } of tenants) {
    const claimed = await db
      .update(projects)
      .set({
        owesNotice: false,
        failedOverAt: new Date(),
        survivedUntil: survivedUntil === null ? null : new Date(survivedUntil),
      })
      .where(and(owesNoticeOn(hostId), eq(projects.tenantId, tenantId)))
      .returning({ id: projects.id, name: projects.name });
    await mailOwners(env, tenantId, claimed, survivedUntil).catch((error) =>
      logEvent('host.tenant_not_notified', { host_id: hostId, tenant_id: tenantId, reason: String(error) }),
    );
    await Promise.allSettled(claimed.map(({ id }) => coordinatorOf(env, id).wake()));
  }
  if (tenants.length === 0) return false;
  logEvent('host.tenants_notified', {
    host_id: hostId,
    tenants: tenants.length,
    survived_until: survivedUntil,
  });
  const [left] = await db.select({ id: projects.id }).from(projects).where(owesNoticeOn(hostId)).limit(1);
  return left !== undefined;
}

async function mailOwners(
  env: DatabaseBinding & Coordinators,
  tenantId: string,
  own: readonly { id: string; name: string }[],
  survivedUntil: string | null,
): Promise<void> {
  const [first] = own;
  if (!first) return;
  const people = await membersOf(openDatabase(env.DB), readSettings(env), tenantId);
  const owners = people.filter(({ accountRole, tokenRole }) => (accountRole ?? tokenRole) === 'owner');
  const addresses = [...new Set(owners.map(({ email }) => email))].slice(0, OWNERS_MAX);
  const names = own.map(({ name }) => name);
  const mails = addresses.map((email) => failoverMail(email, names, survivedUntil));
  if (mails.length > 0) await repeatIfLost(() => coordinatorOf(env, first.id).sendMails(mails));
}

const failoverMail = (to: string, names: readonly string[], survivedUntil: string | null) =>
  plainMail(
    to,
    `The database host of ${names.length === 1 ? names[0] : `${names.length} projects`} was replaced`,
    [
      `A machine was lost, and its standby has taken its place. It has the databases of: ${names.join(', ')}.`,
      survivedUntil === null
        ? 'What was written in the last seconds before may be missing. Check what your applications have written.'
        : `Everything that was committed until ${survivedUntil} is there. What was written after it may be missing.`,
      'Passwords and network rules are as before. Clients have to connect again. If your URLs show the address of the host, get them again.',
    ],
  );
