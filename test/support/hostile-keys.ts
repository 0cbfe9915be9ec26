import { exampleOf } from '../../edge/documentation/example.ts';
import { operationsOf, referenceOf, resolve, type Schema } from '../../edge/documentation/openapi.ts';
import { DESCRIPTION } from './contract.ts';

/** The names that lead from any object to those that all requests of an isolate share. */
export const NAMES = ['__proto__', 'constructor', 'prototype'] as const;
export type Name = (typeof NAMES)[number];

/** A value that a schema allows, with the objects in it whose keys are data. */
interface Example {
  value: unknown;
  maps: object[];
}

/** Values of the schema, so that each object that it declares is in one of them. */
function examplesOf(schema: Schema, visited: readonly string[] = []): Example[] {
  const reference = referenceOf(schema);
  if (reference !== null && visited.includes(reference)) return [];
  const within = reference === null ? visited : [...visited, reference];
  const found = resolve(DESCRIPTION, schema);
  const variants = found.anyOf ?? found.oneOf ?? found.allOf;
  if (variants) return variants.flatMap((variant) => examplesOf(variant, within));
  const [type] = [found.type].flat();
  if (type === 'array') {
    const { items = {} } = found as { items?: Schema };
    return examplesOf(items, within).map(({ value, maps }) => ({ value: [value], maps }));
  }
  if (type !== 'object') return [{ value: exampleOf(DESCRIPTION, schema) ?? null, maps: [] }];
  const { properties = {}, additionalProperties: others } = found;
  if (Object.keys(properties).length === 0 && typeof others === 'object')
    return examplesOf(others, within).map(({ value, maps }) => {
      const map = { name: value };
      return { value: map, maps: [...maps, map] };
    });
  const fields = Object.entries(properties).map(([name, part]) => [name, examplesOf(part, within)] as const);
  const first: Example = { value: {}, maps: [] };
  for (const [name, [one]] of fields)
    if (one) {
      (first.value as Record<string, unknown>)[name] = one.value;
      first.maps.push(...one.maps);
    }
  const further = fields.flatMap(([name, [, ...more]]) =>
    more.map(({ value, maps }) => ({
      value: { ...(first.value as object), [name]: value },
      maps: [...maps, ...first.maps],
    })),
  );
  return [first, ...further];
}

const objectsIn = (value: unknown): object[] => {
  if (typeof value !== 'object' || value === null) return [];
  const inner = Object.values(value).flatMap(objectsIn);
  return Array.isArray(value) ? inner : [value, ...inner];
};

/** The text of `value` with one more key in `target`, which may be `__proto__`. */
const withKey = (value: unknown, target: object, name: Name, added: string): string => {
  const MARK = 'a-mark-that-no-text-has';
  const marked = JSON.stringify(value, (_, each) => (each === target ? { [MARK]: 0, ...each } : each));
  return marked.replace(`"${MARK}":0`, `"${name}":${added}`);
};

/** What would become shared if somebody merged it. */
const ADDED = JSON.stringify({ hostile: 'x', prototype: { hostile: 'x' }, 0: { hostile: 'x' } });

export interface HostileBody {
  operation: string;
  text: string;
  name: Name;
  /** Whether the schema declares the object as one whose keys are data. */
  isMap: boolean;
}

/** Names of the parameters in the query of an operation. */
export const queryNames = (id: string): string[] =>
  operationsOf(DESCRIPTION)
    .filter((operation) => operation.id === id)
    .flatMap(({ parameters }) => parameters.filter((one) => one.in === 'query').map(({ name }) => name));

/** Bodies of all operations with each of the names in each position of their schemas. */
export const hostileBodies = (): HostileBody[] =>
  operationsOf(DESCRIPTION).flatMap(({ id: operation, body }) => {
    const { schema } = body?.content['application/json'] ?? {};
    if (!schema) return [];
    const bodies = new Map<string, HostileBody>();
    for (const { value, maps } of examplesOf(schema))
      for (const target of objectsIn(value))
        for (const name of NAMES) {
          const isMap = maps.includes(target);
          const added = isMap ? '"x"' : ADDED;
          const text = withKey(value, target, name, added);
          bodies.set(text, { operation, text, name, isMap });
        }
    return [...bodies.values()];
  });
