import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './build/repository.ts';

/**
 * Compares the API description with that of the last release and fails on what would break a client of it,
 * unless that release had marked it as deprecated (docs/releasing.md). With `--keep`, the present description
 * becomes that of the last release.
 */

/** The description of the last release. */
const RELEASED = join(ROOT, 'test/released-api.json');

/** What is compared of a JSON schema. */
export interface Schema {
  $ref?: string;
  type?: string | string[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: unknown;
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  deprecated?: boolean;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  maxItems?: number;
}

interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  deprecated?: boolean;
  schema?: Schema;
}

export interface Operation {
  deprecated?: boolean;
  parameters?: Parameter[];
  requestBody?: { required?: boolean; content?: Record<string, { schema?: Schema }> };
  responses?: Record<string, { content?: Record<string, { schema?: Schema }> }>;
}

export interface Description {
  paths?: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, Schema> };
}

/** Who sends the value: a request may become wider, and a response narrower. */
type Direction = 'request' | 'response';

/** What would break a client of `released`, as a line each. */
export function breaksBetween(released: Description, present: Description): string[] {
  return Object.entries(released.paths ?? {}).flatMap(([path, operations]) =>
    Object.entries(operations).flatMap(([method, before]) => {
      const name = `${method.toUpperCase()} ${path}`;
      const after = present.paths?.[path]?.[method];
      if (after) return new Comparison(released, present).operation(name, before, after);
      return before.deprecated ? [] : [`${name} is gone`];
    }),
  );
}

class Comparison {
  readonly #released: Description;
  readonly #present: Description;
  /** Pairs of references under comparison: a schema can contain itself. */
  readonly #open = new Set<string>();

  constructor(released: Description, present: Description) {
    this.#released = released;
    this.#present = present;
  }

  operation(name: string, before: Operation, after: Operation): string[] {
    return [
      ...this.#parameters(name, before, after),
      ...this.#body(name, before, after),
      ...this.#responses(name, before, after),
    ];
  }

  #parameters(name: string, before: Operation, after: Operation): string[] {
    const find = ({ parameters = [] }: Operation, wanted: Parameter) =>
      parameters.find((one) => one.name === wanted.name && one.in === wanted.in);
    const lost = (before.parameters ?? []).flatMap((old) => {
      const kept = find(after, old);
      const at = `${name}: ${old.in} parameter ${old.name}`;
      if (kept) return this.#schema(at, old.schema ?? {}, kept.schema ?? {}, 'request');
      return old.deprecated ? [] : [`${at} is gone`];
    });
    const demanded = (after.parameters ?? []).filter(
      (one) => one.required === true && find(before, one)?.required !== true,
    );
    return [...lost, ...demanded.map((one) => `${name}: ${one.in} parameter ${one.name} is required`)];
  }

  #body(name: string, before: Operation, after: Operation): string[] {
    const isDemanded = after.requestBody?.required === true && before.requestBody?.required !== true;
    return [
      ...(isDemanded ? [`${name}: a body is required`] : []),
      ...this.#contents(`${name}: body`, before.requestBody, after.requestBody, 'request'),
    ];
  }

  #responses(name: string, before: Operation, after: Operation): string[] {
    return Object.entries(before.responses ?? {})
      .filter(([status]) => status.startsWith('2'))
      .flatMap(([status, old]) => {
        const kept = after.responses?.[status];
        if (!kept) return [`${name}: response ${status} is gone`];
        return this.#contents(`${name}: response ${status}`, old, kept, 'response');
      });
  }

  #contents(
    at: string,
    before: Operation['requestBody'],
    after: Operation['requestBody'],
    direction: Direction,
  ): string[] {
    return Object.entries(before?.content ?? {}).flatMap(([type, { schema = {} }]) => {
      const kept = after?.content?.[type];
      return kept ? this.#schema(at, schema, kept.schema ?? {}, direction) : [`${at} is no ${type}`];
    });
  }

  #schema(at: string, before: Schema, after: Schema, direction: Direction): string[] {
    const pair = `${direction} ${before.$ref} ${after.$ref}`;
    const isReference = before.$ref !== undefined && after.$ref !== undefined;
    if (isReference && this.#open.has(pair)) return [];
    this.#open.add(pair);
    const olds = variantsOf(this.#released, before);
    const news = variantsOf(this.#present, after);
    // Each value that a client may send has to be accepted, and each that it may get has to be known.
    const [sent, known] = direction === 'request' ? [olds, news] : [ofKnownKind(news, olds), olds];
    const found = sent.flatMap((one) => {
      const compared = known.map((other) =>
        direction === 'request'
          ? this.#variant(at, one, other, direction)
          : this.#variant(at, other, one, direction),
      );
      const [least = []] = compared.toSorted((a, b) => a.length - b.length);
      return least;
    });
    if (isReference) this.#open.delete(pair);
    return [...new Set(found)];
  }

  #variant(at: string, before: Schema, after: Schema, direction: Direction): string[] {
    const types = { before: typesOf(before), after: typesOf(after) };
    const [sent, known] = direction === 'request' ? [types.before, types.after] : [types.after, types.before];
    if (known.length > 0 && sent.some((type) => !known.includes(type)))
      return [
        `${at} was ${types.before.join(' or ') || 'anything'}, and is ${types.after.join(' or ') || 'anything'}`,
      ];
    return [
      ...(direction === 'request' ? narrowed(at, before, after) : []),
      ...this.#properties(at, before, after, direction),
      ...(before.items && after.items ? this.#schema(`${at}[]`, before.items, after.items, direction) : []),
    ];
  }

  #properties(at: string, before: Schema, after: Schema, direction: Direction): string[] {
    const { properties: olds = {}, required: oldRequired = [] } = before;
    const { properties: news = {}, required: newRequired = [] } = after;
    const isOpen = after.properties === undefined || after.additionalProperties !== false;
    const lost = Object.entries(olds).flatMap(([name, old]) => {
      const field = `${at}.${name}`;
      const kept = news[name];
      if (kept) return this.#schema(field, old, kept, direction);
      const isAccepted = direction === 'request' && isOpen;
      return old.deprecated || isAccepted ? [] : [`${field} is gone`];
    });
    const demanded =
      direction === 'request'
        ? newRequired.filter((name) => !oldRequired.includes(name)).map((name) => `${at}.${name} is required`)
        : oldRequired
            .filter((name) => news[name] && !newRequired.includes(name))
            .map((name) => `${at}.${name} can be absent`);
    return [...lost, ...demanded];
  }
}

/** The alternatives of a schema, without references. */
function variantsOf(description: Description, schema: Schema): Schema[] {
  if (schema.$ref !== undefined) {
    const name = schema.$ref.slice(schema.$ref.lastIndexOf('/') + 1);
    return variantsOf(description, description.components?.schemas?.[name] ?? {});
  }
  const [only] = schema.allOf ?? [];
  if (only && schema.allOf?.length === 1) return variantsOf(description, only);
  const variants = schema.anyOf ?? schema.oneOf;
  return variants ? variants.flatMap((variant) => variantsOf(description, variant)) : [schema];
}

/** The one value of a field that identifies a variant, such as the `type` of an event. */
const kindOf = ({ const: only, enum: values = [] }: Schema): unknown =>
  only ?? (values.length === 1 ? values[0] : undefined);

/** Without the variants that such a field marks as new, which clients have to expect like new values. */
const ofKnownKind = (news: Schema[], olds: Schema[]): Schema[] =>
  news.filter(({ properties = {} }) =>
    Object.entries(properties).every(([name, property]) => {
      const kinds = olds.map((old) => kindOf(old.properties?.[name] ?? {}));
      return (
        kindOf(property) === undefined || kinds.some((kind) => [undefined, kindOf(property)].includes(kind))
      );
    }),
  );

const typesOf = ({ type = [] }: Schema): string[] => {
  const types = [type].flat();
  return types.includes('number') ? [...types, 'integer'] : types;
};

/** Bounds of a request: whether the highest or the lowest accepted value was moved inwards. */
const BOUNDS = {
  maximum: (before: number, after: number) => after < before,
  maxLength: (before: number, after: number) => after < before,
  maxItems: (before: number, after: number) => after < before,
  minimum: (before: number, after: number) => after > before,
  minLength: (before: number, after: number) => after > before,
};

function narrowed(at: string, before: Schema, after: Schema): string[] {
  const bounds = Object.entries(BOUNDS).flatMap(([name, isInwards]) => {
    const old = before[name as keyof typeof BOUNDS];
    const present = after[name as keyof typeof BOUNDS];
    if (present === undefined || (old !== undefined && !isInwards(old, present))) return [];
    return [`${at} has ${name} ${present}${old === undefined ? '' : ` instead of ${old}`}`];
  });
  const valuesOf = ({ enum: values, const: one }: Schema) => values ?? (one === undefined ? null : [one]);
  const accepted = valuesOf(after);
  const lost = accepted === null ? [] : (valuesOf(before) ?? []).filter((value) => !accepted.includes(value));
  return [...bounds, ...lost.map((value) => `${at} is never ${JSON.stringify(value)}`)];
}

/** Texts are not compared. A field with one of these names is an object. */
const withoutTexts = (name: string, value: unknown) =>
  ['description', 'summary'].includes(name) && typeof value === 'string' ? undefined : value;

if (import.meta.main) {
  const document = execFileSync(process.execPath, [join(ROOT, 'edge/print-description.ts')], {
    encoding: 'utf8',
    maxBuffer: 16 * 1024 * 1024,
  });
  if (process.argv.includes('--keep')) {
    writeFileSync(RELEASED, `${JSON.stringify(JSON.parse(document), withoutTexts)}\n`);
  } else {
    const breaks = breaksBetween(JSON.parse(readFileSync(RELEASED, 'utf8')), JSON.parse(document));
    for (const line of breaks) console.error(line);
    if (breaks.length > 0) {
      console.error(
        'Clients of the last release would break. Keep what it has, and deprecate it first (docs/releasing.md).',
      );
      process.exit(1);
    }
  }
}
