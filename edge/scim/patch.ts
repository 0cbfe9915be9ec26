import { fail, ok, type Result } from '../../shared/result.ts';
import {
  type Attribute,
  type Attributes,
  isObject,
  locate,
  type ResourceSchema,
  readValue,
} from './attributes.ts';
import { type Filter, predicateOf, readFilter, sizeOf } from './filter.ts';
import { invalidValue, type PatchBody, type ScimFailure } from './resource.ts';

const OPERATIONS = ['add', 'replace', 'remove'] as const;
type Verb = (typeof OPERATIONS)[number];

/** A path of an operation (RFC 7644 section 3.5.2): `emails`, `name.givenName`, `emails[type eq "work"].value`. */
interface Target {
  path: readonly Attribute[];
  /** Selects values of the last attribute of the path. */
  filter?: Filter;
  /** A sub-attribute of the selected values. */
  sub?: Attribute;
}

const refused = (scimType: NonNullable<ScimFailure['scimType']>, detail: string) =>
  fail<ScimFailure>({ status: 400, scimType, detail });
const invalidPath = (path: string) =>
  refused('invalidPath', `There is no attribute ${JSON.stringify(path.slice(0, 100))}.`);

function readPath(schema: ResourceSchema, text: string): Result<Target, ScimFailure> {
  const [, before, condition, after] = /^([^[]*)\[(.*)\](?:\.([^.[\]]+))?$/s.exec(text.trim()) ?? [];
  const path = locate(schema, before ?? text.trim());
  const last = path?.at(-1);
  if (!path || !last || path.slice(0, -1).some(({ multiValued }) => multiValued)) return invalidPath(text);
  if (condition === undefined) return ok({ path });
  const { subAttributes, multiValued } = last;
  if (!subAttributes || !multiValued) return invalidPath(text);
  const inner = { ...schema, attributes: subAttributes, extensions: [] };
  const filter = readFilter(inner, condition);
  if (!filter.ok) return filter;
  if (after === undefined) return ok({ path, filter: filter.value });
  const [sub] = locate(inner, after) ?? [];
  return sub ? ok({ path, filter: filter.value, sub }) : invalidPath(text);
}

const textOf = (value: unknown) => JSON.stringify(isObject(value) ? Object.entries(value).toSorted() : value);

/** What identifies a value of a list: its `value` and type, otherwise all of it. */
const keyOf = (value: unknown): string =>
  isObject(value) && 'value' in value ? textOf([value.value, value.type ?? null]) : textOf(value);

/** Whether a value is among the given ones. One that is given without a type is meant with any. */
function amongst(given: readonly unknown[]): (value: unknown) => boolean {
  const keys = new Set(given.map(keyOf));
  return (value) =>
    keys.has(keyOf(value)) || (isObject(value) && 'value' in value && keys.has(textOf([value.value, null])));
}

/** Of several values of a list, the last one that became the primary one is it (RFC 7643 section 2.4). */
function withOnePrimary(values: unknown[], changed: readonly unknown[]): unknown[] {
  const primary = changed.findLast((each) => isObject(each) && each.primary === true);
  if (primary === undefined) return values;
  return values.map((each) =>
    isObject(each) && each.primary === true && each !== primary ? { ...each, primary: false } : each,
  );
}

/** The sub-attributes that a filter says a new value has. */
function impliedBy(filter: Filter): Attributes | null {
  if (filter.op === 'eq' && filter.path.length === 1) return { [filter.path[0]?.name ?? '']: filter.value };
  if (filter.op !== 'and') return null;
  const parts = filter.filters.map(impliedBy);
  return parts.every((part) => part !== null) ? Object.assign({}, ...parts) : null;
}

/** Applies an operation to the values of a list that a filter selects. */
function changeSelected(
  verb: Verb,
  attribute: Attribute,
  list: readonly unknown[],
  { filter, sub }: { filter: Filter; sub: Attribute | undefined },
  value: unknown,
): Result<unknown[], ScimFailure> {
  const selected = new Set(list.filter(predicateOf(filter)));
  if (verb === 'remove' && sub === undefined) return ok(list.filter((each) => !selected.has(each)));
  const read =
    verb === 'remove' ? ok(undefined) : readValue(sub ?? { ...attribute, multiValued: false }, value);
  if (!read.ok) return read;
  if (verb !== 'remove' && read.value === undefined) return fail(invalidValue('The operation has no value.'));
  if (verb === 'replace' && selected.size === 0)
    return refused('noTarget', 'The filter of the path matches no value.');
  const part = sub ? { [sub.name]: read.value } : (read.value as Attributes);
  const change = (each: unknown): Attributes => {
    const before = verb === 'replace' && !sub ? {} : (each as Attributes);
    return Object.fromEntries(
      Object.entries({ ...before, ...part }).filter(([, left]) => left !== undefined),
    );
  };
  if (verb === 'add' && selected.size === 0) {
    const implied = impliedBy(filter);
    if (!implied) return refused('invalidPath', 'The filter of the path does not say which value to add.');
    const added = change(implied);
    return ok(withOnePrimary([...list, added], [added]));
  }
  const changed = list.map((each) => (selected.has(each) ? change(each) : each));
  return ok(
    withOnePrimary(
      changed,
      changed.filter((each, n) => each !== list[n]),
    ),
  );
}

/** Applies an operation to a whole list. */
function changeList(
  verb: Verb,
  attribute: Attribute,
  list: readonly unknown[],
  value: unknown,
): Result<unknown[], ScimFailure> {
  const read = readValue(attribute, value);
  if (!read.ok) return read;
  const given = read.value as unknown[] | undefined;
  // Microsoft Entra names the members to remove by value instead of by a filter.
  if (verb === 'remove') {
    const isGiven = amongst(given ?? []);
    return ok(given ? list.filter((each) => !isGiven(each)) : []);
  }
  if (verb === 'replace') return ok(withOnePrimary(given ?? [], given ?? []));
  if (!given) return fail(invalidValue('The operation has no value.'));
  const known = new Set(list.map(keyOf));
  const added = given.filter((each) => known.size < known.add(keyOf(each)).size);
  return ok(withOnePrimary([...list, ...added], added));
}

/** @returns how often it compared a value with a condition */
function applyTo(
  resource: Attributes,
  verb: Verb,
  { path, filter, sub }: Target,
  value: unknown,
): Result<number, ScimFailure> {
  const readOnly = path.find(({ mutability }) => mutability === 'readOnly');
  if (readOnly) return refused('mutability', `${readOnly.name} is read-only.`);
  const attribute = path.at(-1) as Attribute;
  const { name } = attribute;
  let owner = resource;
  for (const { name: outer } of path.slice(0, -1)) {
    const inner = isObject(owner[outer]) ? { ...owner[outer] } : {};
    owner[outer] = inner;
    owner = inner;
  }
  if (attribute.multiValued) {
    const list = Array.isArray(owner[name]) ? owner[name] : [];
    const changed = filter
      ? changeSelected(verb, attribute, list, { filter, sub }, value)
      : changeList(verb, attribute, list, value);
    if (!changed.ok) return changed;
    owner[name] = changed.value;
    return ok(filter ? list.length * sizeOf(filter) : 0);
  }
  if (verb === 'remove') {
    if (attribute.required) return refused('mutability', `${name} is required.`);
    delete owner[name];
    return ok(0);
  }
  if (value === undefined) return fail(invalidValue('The operation has no value.'));
  const read = readValue(attribute, value);
  if (!read.ok) return read;
  // The sub-attributes that are not given stay (RFC 7644 section 3.5.2.3).
  if (read.value === undefined) delete owner[name];
  else
    owner[name] =
      isObject(read.value) && isObject(owner[name]) ? { ...owner[name], ...read.value } : read.value;
  return ok(0);
}

/**
 * Comparisons of filters with values of lists in one request. A thousand operations on a group of the most
 * members need as many; conditions of many parts for each would occupy the isolate of other tenants.
 */
const COMPARISONS_MAX = 5_000_000;

function applyOne(
  schema: ResourceSchema,
  resource: Attributes,
  { op, path, value }: PatchBody['Operations'][number],
): Result<number, ScimFailure> {
  const verb = OPERATIONS.find((each) => each === op.toLowerCase());
  if (!verb) return refused('invalidSyntax', 'op must be add, replace or remove.');
  if (path !== undefined) {
    const target = readPath(schema, path);
    return target.ok ? applyTo(resource, verb, target.value, value) : target;
  }
  if (verb === 'remove') return refused('noTarget', 'An operation that removes has a path.');
  if (!isObject(value)) return fail(invalidValue('An operation without a path has an object as its value.'));
  let comparisons = 0;
  for (const [name, part] of Object.entries(value)) {
    const target = readPath(schema, name);
    if (!target.ok) return target;
    // Clients repeat `schemas` and `id` in the value.
    if (target.value.path.some(({ mutability }) => mutability === 'readOnly')) continue;
    const applied = applyTo(resource, verb, target.value, part);
    if (!applied.ok) return applied;
    comparisons += applied.value;
  }
  return ok(comparisons);
}

/**
 * Applies a PATCH (RFC 7644 section 3.5.2).
 * @returns the resource after all operations, or the first failure: `invalidPath`, `invalidValue`,
 * `invalidFilter`, `invalidSyntax`, `mutability`, `noTarget`
 */
export function applyPatch(
  schema: ResourceSchema,
  resource: Attributes,
  { Operations }: PatchBody,
): Result<Attributes, ScimFailure> {
  const changed = { ...resource };
  let comparisons = 0;
  for (const operation of Operations) {
    const applied = applyOne(schema, changed, operation);
    if (!applied.ok) return applied;
    comparisons += applied.value;
    if (comparisons > COMPARISONS_MAX) return refused('tooMany', 'The operations have too many conditions.');
  }
  return ok(changed);
}
