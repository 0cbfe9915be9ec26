import { and, eq, ne, type SQL, sql } from 'drizzle-orm';
import { fail, ok, type Result } from '../../shared/result.ts';
import {
  type ProviderGroupRow,
  providerGroupMembers,
  providerGroups,
  providerPeople,
} from '../database/company-schema.ts';
import { isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { updateRoles } from '../identity-providers/people.ts';
import { GROUP_SCHEMA } from './attributes.ts';
import { predicateOf, readFilter } from './filter.ts';
import { applyPatch } from './patch.ts';
import {
  changed,
  GroupBody,
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
  whileChanged,
} from './resource.ts';
import { problemOf, type ScimContext } from './users.ts';

/** Groups of a provider that a list reads. */
const READ_MAX = 1000;

const toGroup = (group: ProviderGroupRow, members: readonly string[], baseUrl: string): ScimResource => ({
  schemas: [SCHEMA.group],
  id: group.id,
  ...(group.externalId !== null && { externalId: group.externalId }),
  displayName: group.displayName,
  members: members.map((value) => ({ value, $ref: `${baseUrl}/scim/v2/Users/${value}` })),
  meta: metaOf(baseUrl, 'Group', group),
});

const ofProvider = ({ provider }: ScimContext, condition?: SQL) =>
  and(eq(providerGroups.providerId, provider.id), condition);

async function membersOf({ db }: ScimContext, groupId: string): Promise<string[]> {
  const rows = await db
    .select({ id: providerGroupMembers.personId })
    .from(providerGroupMembers)
    .where(eq(providerGroupMembers.groupId, groupId));
  return rows.map(({ id }) => id);
}

const unknownGroup = notFound('There is no such group.');

async function groupById(context: ScimContext, id: string): Promise<Result<ProviderGroupRow, ScimFailure>> {
  const [row] = await context.db
    .select()
    .from(providerGroups)
    .where(ofProvider(context, eq(providerGroups.id, id)));
  return row ? ok(row) : fail(unknownGroup);
}

export async function listGroups(
  context: ScimContext,
  query: ListQuery,
): Promise<Result<object, ScimFailure>> {
  const { db, baseUrl } = context;
  const filter = query.filter === undefined ? null : readFilter(GROUP_SCHEMA, query.filter);
  if (filter && !filter.ok) return filter;
  const rows = await db
    .select()
    .from(providerGroups)
    .where(ofProvider(context))
    .orderBy(providerGroups.createdAt, providerGroups.id)
    .limit(READ_MAX);
  // The members of the page only, because groups can be large.
  const test = filter === null ? () => true : predicateOf(filter.value);
  const matching = rows.filter((row) => test(toGroup(row, [], baseUrl)));
  const page = matching.slice(query.startIndex - 1, query.startIndex - 1 + query.count);
  const groups = await Promise.all(
    page.map(async (row) => toGroup(row, await membersOf(context, row.id), baseUrl)),
  );
  return ok(listResponse(groups, matching.length, query));
}

export async function getGroup(context: ScimContext, id: string): Promise<Result<ScimResource, ScimFailure>> {
  const found = await groupById(context, id);
  return found.ok ? ok(toGroup(found.value, await membersOf(context, id), context.baseUrl)) : found;
}

const taken: ScimFailure = {
  status: 409,
  scimType: 'uniqueness',
  detail: 'There is a group with this displayName.',
};

/** Whether no other group of the provider has the name. */
const isFree = (
  context: ScimContext,
  { id, displayName }: Pick<ProviderGroupRow, 'id' | 'displayName'>,
): SQL =>
  sql`not ${isThere(
    providerGroups,
    ofProvider(context, and(eq(providerGroups.displayName, displayName), ne(providerGroups.id, id))),
  )}`;

/** The members become these people, of this provider only, if `isAllowed`. */
function setMembers(
  { db, provider }: ScimContext,
  groupId: string,
  members: readonly string[],
  isAllowed: SQL,
): Statement[] {
  const theirs = and(eq(providerGroupMembers.groupId, groupId), isAllowed);
  return [
    db
      .delete(providerGroupMembers)
      .where(
        and(
          theirs,
          sql`${providerGroupMembers.personId} not in (select value from json_each(${JSON.stringify(members)}))`,
        ),
      ),
    db
      .insert(providerGroupMembers)
      .select(
        sql`select ${groupId}, id from ${providerPeople}
          where provider_id = ${provider.id} and deleted_at is null and ${isAllowed}
          and id in (select value from json_each(${JSON.stringify(members)}))`,
      )
      .onConflictDoNothing(),
  ];
}

const memberIds = (body: GroupBody): string[] => [...new Set((body.members ?? []).map(({ value }) => value))];

/** Those whose groups change: who comes or goes, or everyone if the name changes. */
function affected(
  { displayName }: Pick<ProviderGroupRow, 'displayName'>,
  next: string | null,
  before: readonly string[],
  after: readonly string[],
): string[] {
  const everyone = [...new Set([...before, ...after])];
  if (displayName !== next) return everyone;
  const was = new Set(before);
  const is = new Set(after);
  return everyone.filter((person) => was.has(person) !== is.has(person));
}

export async function createGroup(
  context: ScimContext,
  body: GroupBody,
): Promise<Result<ScimResource, ScimFailure>> {
  const { db, provider, now, baseUrl } = context;
  const { displayName } = body;
  const group: ProviderGroupRow = {
    id: crypto.randomUUID(),
    providerId: provider.id,
    displayName,
    externalId: body.externalId ?? null,
    createdAt: now,
    updatedAt: now,
  };
  const created = await guardedWrite<typeof providerGroups, never, ScimFailure>(db, {
    decides: [providerGroups, group],
    require: [[isFree(context, group), taken]],
    rest: (isWritten) => setMembers(context, group.id, memberIds(body), isWritten),
    derived: updateRoles(db, provider, memberIds(body)),
    conflicts: { provider_groups: taken },
  });
  if (!created.ok) return created;
  const members = await membersOf(context, group.id);
  return ok(toGroup(group, members, baseUrl));
}

/** Writes a group that was read, if it is still as it was. */
async function writeGroup(
  context: ScimContext,
  group: ProviderGroupRow,
  before: readonly string[],
  body: GroupBody,
): Promise<Result<ScimResource, ScimFailure>> {
  const { db, provider, now, baseUrl } = context;
  const { id, updatedAt } = group;
  const { displayName, externalId = null } = body;
  const values = { displayName, externalId, updatedAt: laterThan(group, now) };
  const members = memberIds(body);
  const isIt = ofProvider(context, eq(providerGroups.id, id));
  const written = await guardedWrite<typeof providerGroups, never, ScimFailure>(db, {
    decides: (isAllowed) => db.update(providerGroups).set(values).where(and(isIt, isAllowed)),
    require: [
      [isThere(providerGroups, isIt), unknownGroup],
      [isThere(providerGroups, and(isIt, eq(providerGroups.updatedAt, updatedAt))), changed],
      [isFree(context, { id, displayName }), taken],
    ],
    rest: (isAllowed) => setMembers(context, id, members, isAllowed),
    derived: updateRoles(db, provider, affected(group, displayName, before, members)),
    conflicts: { provider_groups: taken },
  });
  if (!written.ok) return written;
  return ok(toGroup({ ...group, ...values }, await membersOf(context, id), baseUrl));
}

export const replaceGroup = (
  context: ScimContext,
  id: string,
  body: GroupBody,
): Promise<Result<ScimResource, ScimFailure>> =>
  whileChanged(async () => {
    const found = await groupById(context, id);
    return found.ok ? writeGroup(context, found.value, await membersOf(context, id), body) : found;
  });

export const patchGroup = (
  context: ScimContext,
  id: string,
  patch: PatchBody,
): Promise<Result<ScimResource, ScimFailure>> =>
  whileChanged(async () => {
    const found = await groupById(context, id);
    if (!found.ok) return found;
    const before = await membersOf(context, id);
    const patched = applyPatch(GROUP_SCHEMA, toGroup(found.value, before, context.baseUrl), patch);
    if (!patched.ok) return patched;
    const body = GroupBody.safeParse(patched.value);
    if (!body.success) return fail(invalidValue(problemOf(body.error.issues)));
    return writeGroup(context, found.value, before, body.data);
  });

export const deleteGroup = (context: ScimContext, id: string): Promise<Result<null, ScimFailure>> =>
  whileChanged(async () => {
    const found = await groupById(context, id);
    if (!found.ok) return found;
    const before = await membersOf(context, id);
    const { db, provider } = context;
    const isIt = ofProvider(context, eq(providerGroups.id, id));
    const isAsRead = and(isIt, eq(providerGroups.updatedAt, found.value.updatedAt));
    const deleted = await guardedWrite<typeof providerGroups, never, ScimFailure>(db, {
      decides: (isAllowed) => db.delete(providerGroups).where(and(isIt, isAllowed)),
      require: [
        [isThere(providerGroups, isIt), unknownGroup],
        [isThere(providerGroups, isAsRead), changed],
      ],
      rest: (isAllowed) => [
        db.delete(providerGroupMembers).where(and(eq(providerGroupMembers.groupId, id), isAllowed)),
      ],
      derived: updateRoles(db, provider, affected(found.value, null, before, [])),
    });
    return deleted.ok ? ok(null) : deleted;
  });
