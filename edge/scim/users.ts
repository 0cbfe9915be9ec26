import { and, eq, isNull, ne, or, type SQL, sql } from 'drizzle-orm';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type AuditName, auditEvent, type ClientDetails, noActor } from '../audit/audit-event.ts';
import { type ProviderPersonRow, type ProviderRow, providerPeople } from '../database/company-schema.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents } from '../database/schema.ts';
import { isAddressIn, roleOf } from '../identity-providers/claims.ts';
import { verifiedDomains } from '../identity-providers/domains.ts';
import { endPeople, groupsOf } from '../identity-providers/people.ts';
import { USER_SCHEMA } from './attributes.ts';
import { equality, predicateOf, readFilter } from './filter.ts';
import { applyPatch } from './patch.ts';
import {
  changed,
  invalidValue,
  type ListQuery,
  laterThan,
  listResponse,
  metaOf,
  notFound,
  type PatchBody,
  SCHEMA,
  type ScimFailure,
  type ScimResource,
  UserBody,
  whileChanged,
} from './resource.ts';

/** What a request of SCIM works with. */
export interface ScimContext {
  db: Database;
  provider: ProviderRow;
  baseUrl: string;
  client: ClientDetails;
  now: Date;
}

/** People that a filter has to read; a larger directory is searched by `userName` or `externalId`. */
const READ_MAX = 5000;
const ATTRIBUTES_MAX = 16_384;

/** Columns, and what only the gateway writes. */
const NOT_STORED = ['schemas', 'id', 'meta', 'userName', 'externalId', 'active', 'groups'];

const toUser = (
  person: ProviderPersonRow,
  groups: readonly string[] | null,
  baseUrl: string,
): ScimResource => ({
  schemas: [SCHEMA.user],
  id: person.id,
  ...(person.externalId !== null && { externalId: person.externalId }),
  userName: person.userName,
  ...person.attributes,
  active: person.active,
  ...(groups !== null && { groups: groups.map((display) => ({ display })) }),
  meta: metaOf(baseUrl, 'User', person),
});

const ofProvider = ({ provider }: ScimContext, condition?: SQL) =>
  and(eq(providerPeople.providerId, provider.id), isNull(providerPeople.deletedAt), condition);

const unknownUser = notFound('There is no such user.');

async function personById(context: ScimContext, id: string): Promise<Result<ProviderPersonRow, ScimFailure>> {
  const [row] = await context.db
    .select()
    .from(providerPeople)
    .where(ofProvider(context, eq(providerPeople.id, id)));
  return row ? ok(row) : fail(unknownUser);
}

/** The columns of the attributes that a client looks people up by. */
function conditionFor({ attribute, value }: { attribute: string; value: string }): SQL | undefined {
  if (attribute === 'userName') return eq(providerPeople.userName, value.toLowerCase());
  if (attribute === 'externalId') return eq(providerPeople.externalId, value);
  if (attribute === 'id') return eq(providerPeople.id, value);
  return undefined;
}

export async function listUsers(
  context: ScimContext,
  query: ListQuery,
): Promise<Result<object, ScimFailure>> {
  const { db, baseUrl } = context;
  const filter = query.filter === undefined ? null : readFilter(USER_SCHEMA, query.filter);
  if (filter && !filter.ok) return filter;
  const equal = filter && equality(filter.value);
  const found = equal ? conditionFor(equal) : undefined;
  const isPaged = filter === null || found !== undefined;
  const condition = ofProvider(context, found);
  const rows = await db
    .select()
    .from(providerPeople)
    .where(condition)
    .orderBy(providerPeople.createdAt, providerPeople.id)
    .limit(isPaged ? query.count : READ_MAX + 1)
    .offset(isPaged ? query.startIndex - 1 : 0);
  if (!isPaged && rows.length > READ_MAX)
    return fail({ status: 400, scimType: 'tooMany', detail: 'Filter by userName, externalId or id.' });
  const users = rows.map((row) => toUser(row, null, baseUrl));
  if (isPaged) return ok(listResponse(users, await db.$count(providerPeople, condition), query));
  const matching = users.filter(predicateOf(filter.value));
  const page = matching.slice(query.startIndex - 1, query.startIndex - 1 + query.count);
  return ok(listResponse(page, matching.length, query));
}

export async function getUser(context: ScimContext, id: string): Promise<Result<ScimResource, ScimFailure>> {
  const [found, groups] = await Promise.all([personById(context, id), groupsOf(context.db, id)]);
  return found.ok ? ok(toUser(found.value, groups, context.baseUrl)) : found;
}

const resourceOf = async ({ db, baseUrl }: ScimContext, person: ProviderPersonRow) =>
  toUser(person, await groupsOf(db, person.id), baseUrl);

/**
 * The columns that a user's body sets. An address outside of the verified domains is stored as an attribute and never becomes
 * the person's: sessions, invitations and mails of the gateway would carry it.
 * @param before the person, if there is one
 */
async function columnsOf(
  { db, provider }: ScimContext,
  body: UserBody,
  before?: ProviderPersonRow,
): Promise<
  Result<Pick<ProviderPersonRow, 'userName' | 'externalId' | 'email' | 'active' | 'attributes'>, ScimFailure>
> {
  const attributes = Object.fromEntries(
    Object.entries(body).filter(([name, value]) => !NOT_STORED.includes(name) && value !== null),
  );
  if (JSON.stringify(attributes).length > ATTRIBUTES_MAX)
    return fail(invalidValue('The user has too many attributes.'));
  const userName = body.userName.toLowerCase();
  const emails = (body.emails ?? []).toSorted(
    (a, b) => Number(b.primary ?? false) - Number(a.primary ?? false),
  );
  const domains = await verifiedDomains(db, provider.id);
  const addresses = [...emails.map(({ value }) => value.toLowerCase()), userName];
  const email = addresses.find((address) => isAddressIn(domains, address)) ?? before?.email ?? userName;
  return ok({ userName, externalId: body.externalId ?? null, email, active: body.active, attributes });
}

const eventOf = (
  { provider, client, now }: ScimContext,
  name: AuditName,
  { id, email }: { id: string; email: string },
) =>
  auditEvent(
    name,
    { ...noActor(provider.tenantId), ...client },
    { metadata: { person_id: id, provider_id: provider.id, email, by: 'scim' } },
    now,
  );

const taken: ScimFailure = {
  status: 409,
  scimType: 'uniqueness',
  detail: 'There is a user with this userName.',
};

/**
 * Creates a user. A person who has signed in before, and one whom SCIM had deleted, becomes this user: the one
 * with the `externalId` as its subject or, failing that, with the `userName` as its address.
 */
export const createUser = (
  context: ScimContext,
  body: UserBody,
): Promise<Result<ScimResource, ScimFailure>> => whileChanged(() => createOrAdopt(context, body));

async function createOrAdopt(
  context: ScimContext,
  body: UserBody,
): Promise<Result<ScimResource, ScimFailure>> {
  const { db, provider, now } = context;
  const columns = await columnsOf(context, body);
  if (!columns.ok) return columns;
  const { userName, externalId, active } = columns.value;
  const isSame = or(
    eq(providerPeople.userName, userName),
    externalId === null
      ? undefined
      : or(eq(providerPeople.externalId, externalId), eq(providerPeople.subject, externalId)),
  );
  const known = await db
    .select()
    .from(providerPeople)
    .where(and(eq(providerPeople.providerId, provider.id), isSame));
  if (known.some((row) => row.provisioned && row.deletedAt === null)) return fail(taken);
  const adopted =
    known.find((row) => externalId !== null && row.subject === externalId) ??
    known.find((row) => row.userName === userName) ??
    known.find((row) => row.externalId === externalId);
  if (adopted) return writeBody(context, adopted, body, 'person.created');
  const person: ProviderPersonRow = {
    id: crypto.randomUUID(),
    providerId: provider.id,
    tenantId: provider.tenantId,
    subject: null,
    ...columns.value,
    role: roleOf(provider, []),
    claimValues: [],
    provisioned: true,
    active,
    deletedAt: null,
    version: 0,
    signedInAt: null,
    createdAt: now,
    updatedAt: now,
  };
  const isFree = sql`not ${isThere(
    providerPeople,
    and(eq(providerPeople.providerId, provider.id), eq(providerPeople.userName, userName)),
  )}`;
  const event = eventOf(context, 'person.created', person);
  const created = await guardedWrite<typeof providerPeople, never, ScimFailure>(db, {
    decides: [providerPeople, person],
    require: [[isFree, taken]],
    rest: (isWritten) => [insertIf(db, auditEvents, event, isWritten)],
    conflicts: { provider_people: taken },
  });
  return created.ok ? ok(await resourceOf(context, person)) : created;
}

/**
 * Writes a user, and ends everything of it if it is not active any more.
 * @param before as it was read: a user that was changed since then is not written
 */
async function write(
  context: ScimContext,
  before: ProviderPersonRow,
  columns: Pick<ProviderPersonRow, 'userName' | 'externalId' | 'email' | 'active' | 'attributes'>,
  event: ReturnType<typeof auditEvent>,
): Promise<Result<ScimResource, ScimFailure>> {
  const { db, provider, now } = context;
  const { id, deletedAt, updatedAt } = before;
  const isIt = and(
    eq(providerPeople.id, id),
    deletedAt === null ? isNull(providerPeople.deletedAt) : eq(providerPeople.deletedAt, deletedAt),
  );
  const isAsRead = and(isIt, eq(providerPeople.updatedAt, updatedAt));
  const isTaken = and(
    eq(providerPeople.providerId, provider.id),
    eq(providerPeople.userName, columns.userName),
    ne(providerPeople.id, id),
    isNull(providerPeople.deletedAt),
  );
  const values = { ...columns, provisioned: true, deletedAt: null, updatedAt: laterThan(before, now) };
  const written = await guardedWrite<typeof auditEvents, never, ScimFailure>(db, {
    decides: [auditEvents, event],
    require: [
      [isThere(providerPeople, isIt), unknownUser],
      [isThere(providerPeople, isAsRead), changed],
      [sql`not ${isThere(providerPeople, isTaken)}`, taken],
    ],
    rest: (isWritten) => [
      ...(columns.active ? [] : endPeople(db, and(isIt, isWritten))),
      db.update(providerPeople).set(values).where(and(isIt, isWritten)),
    ],
  });
  return written.ok ? ok(await resourceOf(context, { ...before, ...values })) : written;
}

const nameOfChange = (before: ProviderPersonRow, { active }: { active: boolean }): AuditName =>
  before.active === active ? 'person.changed' : active ? 'person.enabled' : 'person.disabled';

async function writeBody(
  context: ScimContext,
  before: ProviderPersonRow,
  body: UserBody,
  name: AuditName = nameOfChange(before, body),
): Promise<Result<ScimResource, ScimFailure>> {
  const columns = await columnsOf(context, body, before);
  if (!columns.ok) return columns;
  return write(context, before, columns.value, eventOf(context, name, before));
}

export const replaceUser = (
  context: ScimContext,
  id: string,
  body: UserBody,
): Promise<Result<ScimResource, ScimFailure>> =>
  whileChanged(async () => {
    const found = await personById(context, id);
    return found.ok ? writeBody(context, found.value, body) : found;
  });

export const patchUser = (
  context: ScimContext,
  id: string,
  patch: PatchBody,
): Promise<Result<ScimResource, ScimFailure>> =>
  whileChanged(async () => {
    const found = await personById(context, id);
    if (!found.ok) return found;
    const patched = applyPatch(USER_SCHEMA, toUser(found.value, null, context.baseUrl), patch);
    if (!patched.ok) return patched;
    const body = UserBody.safeParse(patched.value);
    if (!body.success) return fail(invalidValue(problemOf(body.error.issues)));
    return writeBody(context, found.value, body.data);
  });

export const problemOf = (issues: readonly { path: PropertyKey[]; message: string }[]): string =>
  issues
    .map(({ path, message }) => `${path.join('.')}: ${message}`)
    .join('; ')
    .slice(0, 500);

/** Deletes a user. The person cannot sign in again before it is created again. */
export async function deleteUser(context: ScimContext, id: string): Promise<Result<null, ScimFailure>> {
  const { db, now } = context;
  const found = await personById(context, id);
  if (!found.ok) return found;
  const isIt = ofProvider(context, eq(providerPeople.id, id));
  const deleted = await guardedWrite<typeof auditEvents, never, ScimFailure>(db, {
    decides: [auditEvents, eventOf(context, 'person.deleted', found.value)],
    require: [[isThere(providerPeople, isIt), unknownUser]],
    rest: (isWritten) => [
      ...endPeople(db, and(isIt, isWritten)),
      db
        .update(providerPeople)
        .set({ active: false, deletedAt: now, updatedAt: laterThan(found.value, now) })
        .where(and(isIt, isWritten)),
    ],
  });
  return deleted.ok ? ok(null) : deleted;
}
