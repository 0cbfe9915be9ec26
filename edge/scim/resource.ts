import { z } from 'zod';
import type { Result } from '../../shared/result.ts';

/** The schemas and messages of SCIM 2.0 (RFC 7643, RFC 7644). */
export const SCHEMA = {
  user: 'urn:ietf:params:scim:schemas:core:2.0:User',
  group: 'urn:ietf:params:scim:schemas:core:2.0:Group',
  enterprise: 'urn:ietf:params:scim:schemas:extension:enterprise:2.0:User',
  list: 'urn:ietf:params:scim:api:messages:2.0:ListResponse',
  patch: 'urn:ietf:params:scim:api:messages:2.0:PatchOp',
  error: 'urn:ietf:params:scim:api:messages:2.0:Error',
  config: 'urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig',
  schema: 'urn:ietf:params:scim:schemas:core:2.0:Schema',
  resourceType: 'urn:ietf:params:scim:schemas:core:2.0:ResourceType',
} as const;

export const SCIM_PATH = '/scim/v2';
export const SCIM_TYPE = 'application/scim+json';

/** Why a request is refused (RFC 7644 section 3.12). */
export interface ScimFailure {
  status: 400 | 404 | 409;
  scimType?:
    | 'invalidFilter'
    | 'invalidSyntax'
    | 'invalidValue'
    | 'invalidPath'
    | 'mutability'
    | 'uniqueness'
    | 'tooMany'
    | 'noTarget';
  detail: string;
}

export const invalidValue = (detail: string): ScimFailure => ({
  status: 400,
  scimType: 'invalidValue',
  detail,
});
/** Another request changed the resource after it was read. */
const CHANGED = 'The resource was changed at the same time. Send the request again.';
export const changed: ScimFailure = { status: 409, detail: CHANGED };
const ATTEMPTS = 5;

/**
 * Repeats a change that reads the resource first. Of two requests at a time one would undo the other: a person
 * that is deactivated by one would be active again by the other.
 */
export async function whileChanged<T>(
  change: () => Promise<Result<T, ScimFailure>>,
): Promise<Result<T, ScimFailure>> {
  for (let left = ATTEMPTS; ; left--) {
    const outcome = await change();
    if (outcome.ok || outcome.failure.detail !== CHANGED || left === 1) return outcome;
  }
}

/** When a resource is written that was read: each write has a time of its own, by which the next one sees it. */
export const laterThan = ({ updatedAt }: { updatedAt: Date }, now: Date): Date =>
  now > updatedAt ? now : new Date(updatedAt.getTime() + 1);

export const notFound = (detail: string): ScimFailure => ({ status: 404, detail });

/** Entra sends booleans as text unless it is asked not to. */
const Flag = z.union([
  z.boolean(),
  z
    .string()
    .toLowerCase()
    .pipe(z.stringbool({ truthy: ['true'], falsy: ['false'] })),
]);

const Text = z.string().trim().min(1).max(256);

const Email = z.looseObject({ value: z.string().max(320), primary: Flag.optional() });

/** A user as a client sends it. The attributes that the gateway does not use are stored and returned. */
export const UserBody = z.looseObject({
  userName: Text,
  externalId: Text.nullish(),
  active: Flag.default(true),
  emails: z.array(Email).max(20).nullish(),
});
export type UserBody = z.output<typeof UserBody>;

const Member = z.looseObject({ value: z.string().max(64) });

export const GroupBody = z.looseObject({
  displayName: Text,
  externalId: Text.nullish(),
  members: z.array(Member).max(5000).nullish(),
});
export type GroupBody = z.output<typeof GroupBody>;

export const PatchBody = z.looseObject({
  Operations: z
    .array(
      z.looseObject({
        op: z.string().max(16),
        path: z.string().max(512).optional(),
        value: z.unknown().optional(),
      }),
    )
    .min(1)
    .max(1000),
});
export type PatchBody = z.output<typeof PatchBody>;

export interface Meta {
  resourceType: 'User' | 'Group';
  created: string;
  lastModified: string;
  location: string;
}

export interface ScimResource extends Record<string, unknown> {
  schemas: string[];
  id: string;
  meta: Meta;
}

export const metaOf = (
  baseUrl: string,
  resourceType: Meta['resourceType'],
  { id, createdAt, updatedAt }: { id: string; createdAt: Date; updatedAt: Date },
): Meta => ({
  resourceType,
  created: createdAt.toISOString(),
  lastModified: updatedAt.toISOString(),
  location: `${baseUrl}${SCIM_PATH}/${resourceType}s/${id}`,
});

export const SCIM_PAGE_MAX = 200;

/** The query of a list (RFC 7644 section 3.4.2). */
export interface ListQuery {
  filter?: string | undefined;
  startIndex: number;
  count: number;
}

export const listResponse = (
  resources: readonly ScimResource[],
  totalResults: number,
  { startIndex }: ListQuery,
) => ({
  schemas: [SCHEMA.list],
  totalResults,
  startIndex,
  itemsPerPage: resources.length,
  Resources: resources,
});

const ALWAYS = ['schemas', 'id', 'meta'];

/** The attributes that the client asked for (RFC 7644 section 3.9), by their first name. */
export function project(
  resource: ScimResource,
  {
    attributes,
    excludedAttributes,
  }: { attributes?: string | undefined; excludedAttributes?: string | undefined },
): ScimResource {
  const names = (text: string) => text.split(',').map((name) => name.trim().split('.')[0]?.toLowerCase());
  const wanted = attributes === undefined ? null : names(attributes);
  const excluded = excludedAttributes === undefined ? [] : names(excludedAttributes);
  const entries = Object.entries(resource).filter(([name]) => {
    if (ALWAYS.includes(name)) return true;
    const lower = name.toLowerCase();
    return (wanted === null || wanted.includes(lower)) && !excluded.includes(lower);
  });
  return Object.fromEntries(entries) as ScimResource;
}
