import { fail, ok, type Result } from '../../shared/result.ts';
import { invalidValue, SCHEMA, type ScimFailure } from './resource.ts';

/** An attribute of a resource (RFC 7643 section 7). */
export interface Attribute {
  readonly name: string;
  readonly type: 'string' | 'boolean' | 'dateTime' | 'reference' | 'complex';
  readonly multiValued: boolean;
  readonly required: boolean;
  readonly caseExact: boolean;
  readonly mutability: 'readWrite' | 'readOnly';
  readonly returned: 'always' | 'default';
  readonly uniqueness: 'none' | 'server';
  readonly subAttributes?: readonly Attribute[];
}

/**
 * The attributes that a resource has. A name in a request selects one of them and never becomes a key itself:
 * a client that could choose keys would reach the prototypes that all tenants share.
 */
export interface ResourceSchema {
  readonly id: string;
  readonly name: 'User' | 'Group';
  readonly attributes: readonly Attribute[];
  /** Schemas whose attributes are nested under their URN (RFC 7643 section 3.3). */
  readonly extensions: readonly string[];
}

/** The value of a complex attribute, or a resource. */
export type Attributes = Record<string, unknown>;

const attribute = (name: string, more: Partial<Attribute> = {}): Attribute => ({
  name,
  type: 'string',
  multiValued: false,
  required: false,
  caseExact: false,
  mutability: 'readWrite',
  returned: 'default',
  uniqueness: 'none',
  ...more,
});

const READ_ONLY = { mutability: 'readOnly', caseExact: true } as const;
const texts = (...names: string[]) => names.map((name) => attribute(name));
const complex = (name: string, subAttributes: readonly Attribute[], more: Partial<Attribute> = {}) =>
  attribute(name, { type: 'complex', subAttributes, ...more });

/** A list of values with a type, of which one may be the primary one (RFC 7643 section 2.4). */
const list = (name: string) =>
  complex(name, [...texts('value', 'display', 'type'), attribute('primary', { type: 'boolean' })], {
    multiValued: true,
  });

/** RFC 7643 section 3.1. */
const COMMON: readonly Attribute[] = [
  attribute('schemas', { ...READ_ONLY, multiValued: true, returned: 'always' }),
  attribute('id', { ...READ_ONLY, returned: 'always', uniqueness: 'server' }),
  attribute('externalId', { caseExact: true }),
  complex(
    'meta',
    [
      attribute('resourceType', READ_ONLY),
      attribute('created', { ...READ_ONLY, type: 'dateTime' }),
      attribute('lastModified', { ...READ_ONLY, type: 'dateTime' }),
      attribute('location', { ...READ_ONLY, type: 'reference' }),
    ],
    { mutability: 'readOnly' },
  ),
];

/** RFC 7643 sections 4.1 and 4.3. */
export const USER_SCHEMA: ResourceSchema = {
  id: SCHEMA.user,
  name: 'User',
  extensions: [SCHEMA.enterprise],
  attributes: [
    ...COMMON,
    attribute('userName', { required: true, uniqueness: 'server' }),
    complex(
      'name',
      texts('formatted', 'familyName', 'givenName', 'middleName', 'honorificPrefix', 'honorificSuffix'),
    ),
    ...texts('displayName', 'nickName', 'profileUrl', 'title', 'userType'),
    ...texts('preferredLanguage', 'locale', 'timezone'),
    attribute('active', { type: 'boolean' }),
    ...['emails', 'phoneNumbers', 'ims', 'photos', 'entitlements', 'roles'].map(list),
    complex(
      'addresses',
      [
        ...texts('formatted', 'streetAddress', 'locality', 'region', 'postalCode', 'country', 'type'),
        attribute('primary', { type: 'boolean' }),
      ],
      { multiValued: true },
    ),
    complex('groups', texts('value', 'display'), { multiValued: true, mutability: 'readOnly' }),
    complex(SCHEMA.enterprise, [
      ...texts('employeeNumber', 'costCenter', 'organization', 'division', 'department'),
      complex('manager', [attribute('value', { caseExact: true }), ...texts('$ref', 'displayName')]),
    ]),
  ],
};

/** RFC 7643 section 4.2. */
export const GROUP_SCHEMA: ResourceSchema = {
  id: SCHEMA.group,
  name: 'Group',
  extensions: [],
  attributes: [
    ...COMMON,
    attribute('displayName', { required: true, uniqueness: 'server' }),
    complex('members', [attribute('value', { caseExact: true }), attribute('$ref', { type: 'reference' })], {
      multiValued: true,
    }),
  ],
};

const named = (attributes: readonly Attribute[] | undefined, name: string): Attribute | undefined =>
  attributes?.find((each) => each.name.toLowerCase() === name.toLowerCase());

/**
 * The attributes along a path without a filter, from the outermost to the one it names (RFC 7644 section
 * 3.10). Names are compared without case (RFC 7643 section 2.1).
 * @returns or null if one of them does not exist
 */
export function locate(schema: Omit<ResourceSchema, 'name'>, path: string): Attribute[] | null {
  const lower = path.toLowerCase();
  const urn = [schema.id, ...schema.extensions].find(
    (id) => lower === id.toLowerCase() || lower.startsWith(`${id.toLowerCase()}:`),
  );
  const isExtension = urn !== undefined && schema.extensions.includes(urn);
  const rest = urn === undefined ? path : path.slice(urn.length + 1);
  const names = [...(isExtension ? [urn] : []), ...(isExtension && rest === '' ? [] : rest.split('.'))];
  const found: Attribute[] = [];
  let attributes: readonly Attribute[] | undefined = schema.attributes;
  for (const name of names) {
    const next = named(attributes, name);
    if (!next) return null;
    found.push(next);
    attributes = next.subAttributes;
  }
  return found;
}

export const isObject = (value: unknown): value is Attributes =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const TEXT_MAX = 2048;

function readComplex(
  { name, subAttributes }: Attribute,
  value: unknown,
): Result<Attributes | undefined, ScimFailure> {
  // Microsoft Entra sends a manager, and a reference to a member, as its id alone.
  const entries = typeof value === 'string' ? { value } : value;
  if (!isObject(entries)) return fail(invalidValue(`${name} must be an object.`));
  const read: Attributes = {};
  for (const [key, part] of Object.entries(entries)) {
    const sub = named(subAttributes, key);
    if (!sub) continue;
    const inner = readValue(sub, part);
    if (!inner.ok) return inner;
    if (inner.value !== undefined) read[sub.name] = inner.value;
  }
  const isEmpty = Object.keys(read).length === 0;
  if (isEmpty && Object.keys(entries).length > 0)
    return fail(invalidValue(`${name} has none of its sub-attributes.`));
  return ok(isEmpty ? undefined : read);
}

function readOne(attribute: Attribute, value: unknown): Result<unknown, ScimFailure> {
  const { name, type } = attribute;
  if (type === 'complex') return readComplex(attribute, value);
  if (type === 'boolean') {
    // Microsoft Entra sends booleans as text unless it is asked not to.
    const read = typeof value === 'string' ? { true: true, false: false }[value.toLowerCase()] : value;
    return typeof read === 'boolean' ? ok(read) : fail(invalidValue(`${name} must be true or false.`));
  }
  if (typeof value === 'string' && value.length <= TEXT_MAX) return ok(value);
  return fail(invalidValue(`${name} must be a string of at most ${TEXT_MAX} characters.`));
}

/**
 * A value with the names and types of its attribute. Sub-attributes that do not exist are left out.
 * @returns undefined for one that is not assigned (RFC 7643 section 2.5), or `invalidValue`
 */
export function readValue(attribute: Attribute, value: unknown): Result<unknown, ScimFailure> {
  if (value === null || value === undefined) return ok(undefined);
  if (!attribute.multiValued) return readOne(attribute, value);
  const values: unknown[] = [];
  for (const each of Array.isArray(value) ? value : [value]) {
    const read = readOne(attribute, each);
    if (!read.ok) return read;
    if (read.value !== undefined) values.push(read.value);
  }
  return ok(values);
}

/**
 * The attributes of a body of POST or PUT. Those that do not exist, or that only the gateway writes, are
 * ignored (RFC 7644 section 3.3).
 * @returns or `invalidValue`
 */
export function readResource(schema: ResourceSchema, body: Attributes): Result<Attributes, ScimFailure> {
  const read: Attributes = {};
  for (const [name, value] of Object.entries(body)) {
    const path = locate(schema, name);
    const [attribute] = path ?? [];
    if (path?.length !== 1 || attribute === undefined || attribute.mutability === 'readOnly') continue;
    const each = readValue(attribute, value);
    if (!each.ok) return each;
    if (each.value !== undefined) read[attribute.name] = each.value;
  }
  return ok(read);
}
