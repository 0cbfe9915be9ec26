import { type ScimResource as PatchedResource, type ScimPatchOperation, scimPatch } from 'scim-patch';
import { type Filter, parse, filter as testerOf } from 'scim2-parse-filter';
import { fail, ok, type Result } from '../../shared/result.ts';
import { invalidValue, type PatchBody, type ScimFailure, type ScimResource } from './resource.ts';

const FILTER_MAX = 1000;
const OPERATIONS = ['add', 'replace', 'remove'];

/** A filter: the value of one attribute, which the database finds, or a predicate. */
export interface ReadFilter {
  equals: { attribute: string; value: string } | null;
  matches: (resource: ScimResource) => boolean;
}

/** @returns or `invalidFilter` */
export function readFilter(text: string): Result<ReadFilter, ScimFailure> {
  const invalid = {
    status: 400,
    scimType: 'invalidFilter',
    detail: 'The filter is not valid (RFC 7644 section 3.4.2.2).',
  } as const;
  if (text.length > FILTER_MAX) return fail(invalid);
  let filter: Filter;
  try {
    filter = parse(text);
    const matches = testerOf(filter);
    const equals =
      filter.op === 'eq' && typeof filter.compValue === 'string'
        ? { attribute: filter.attrPath.toLowerCase(), value: filter.compValue }
        : null;
    return ok({ equals, matches: (resource) => matches(resource) });
  } catch {
    return fail(invalid);
  }
}

/** Applies a PATCH (RFC 7644 section 3.5.2) to a copy of the resource. @returns or what is wrong with it */
export function applyPatch(resource: ScimResource, { Operations }: PatchBody): Result<unknown, ScimFailure> {
  const operations = Operations.map((each) => ({ ...each, op: each.op.toLowerCase() }));
  const unknown = operations.find(({ op }) => !OPERATIONS.includes(op));
  if (unknown)
    return fail({ status: 400, scimType: 'invalidSyntax', detail: 'op must be add, replace or remove.' });
  try {
    const copy = structuredClone(resource) as unknown as PatchedResource;
    return ok(scimPatch(copy, operations as unknown as ScimPatchOperation[]));
  } catch (error) {
    const detail = (error as Error).message.slice(0, 200);
    const isPath = /path|target/i.test((error as Error).name + detail);
    return fail(isPath ? { status: 400, scimType: 'invalidPath', detail } : invalidValue(detail));
  }
}
