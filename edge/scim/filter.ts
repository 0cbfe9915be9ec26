import { fail, ok, type Result } from '../../shared/result.ts';
import { type Attribute, isObject, locate, type ResourceSchema } from './attributes.ts';
import type { ScimFailure } from './resource.ts';

/** A condition on a resource or on a value of an attribute (RFC 7644 section 3.4.2.2). */
export type Filter =
  | { readonly op: 'and' | 'or'; readonly filters: readonly Filter[] }
  | { readonly op: 'not'; readonly filter: Filter }
  | { readonly op: 'value'; readonly path: readonly Attribute[]; readonly filter: Filter }
  | Comparison;

interface Comparison {
  readonly op: Operator;
  readonly path: readonly Attribute[];
  /** Null with `pr`. */
  readonly value: Literal;
}

type Literal = string | number | boolean | null;

/** Texts and numbers have an order (RFC 7644 section 3.4.2.2); a value is not compared with one of another type. */
const ordered =
  (compare: (one: string | number, other: string | number) => boolean) => (one: Literal, other: Literal) =>
    (typeof one === 'string' && typeof other === 'string') ||
    (typeof one === 'number' && typeof other === 'number')
      ? compare(one, other)
      : false;

const COMPARISONS = {
  eq: (one: Literal, other: Literal) => one === other,
  ne: (one: Literal, other: Literal) => one !== other,
  co: (one: Literal, other: Literal) => `${one}`.includes(`${other}`),
  sw: (one: Literal, other: Literal) => `${one}`.startsWith(`${other}`),
  ew: (one: Literal, other: Literal) => `${one}`.endsWith(`${other}`),
  gt: ordered((one, other) => one > other),
  ge: ordered((one, other) => one >= other),
  lt: ordered((one, other) => one < other),
  le: ordered((one, other) => one <= other),
  pr: (one: Literal) => one !== null && one !== '',
};
type Operator = keyof typeof COMPARISONS;
const OPERATORS = Object.keys(COMPARISONS) as Operator[];

const FILTER_MAX = 1000;
/** Parentheses and brackets within one another. */
const DEPTH_MAX = 20;

/** A token per match. No alternative begins with what another matches, so the time is linear in the length. */
const TOKEN = /\s+|"(?:[^"\\]|\\.)*"|[()[\]]|\.?[^\s"()[\]]+/gsy;

class Invalid extends Error {}

/** Reads a filter by recursive descent: `or` binds weaker than `and`, and `and` weaker than `not`. */
class Parser {
  readonly #tokens: string[] = [];
  #next = 0;

  constructor(text: string) {
    let end = 0;
    for (const [token] of text.matchAll(TOKEN)) {
      end += token.length;
      if (token.trim() !== '') this.#tokens.push(token);
    }
    if (end !== text.length) throw new Invalid();
  }

  whole(schema: ResourceSchema): Filter {
    const filter = this.#either(schema, 0);
    if (this.#next < this.#tokens.length) throw new Invalid();
    return filter;
  }

  #accept(word: string): boolean {
    const isNext = this.#tokens[this.#next]?.toLowerCase() === word;
    if (isNext) this.#next++;
    return isNext;
  }

  #expect(word: string): void {
    if (!this.#accept(word)) throw new Invalid();
  }

  #take(): string {
    const token = this.#tokens[this.#next++];
    if (token === undefined) throw new Invalid();
    return token;
  }

  #either(schema: ResourceSchema, depth: number): Filter {
    return this.#chain('or', () => this.#chain('and', () => this.#one(schema, depth)));
  }

  #chain(op: 'and' | 'or', read: () => Filter): Filter {
    const first = read();
    const filters = [first];
    while (this.#accept(op)) filters.push(read());
    return filters.length === 1 ? first : { op, filters };
  }

  #one(schema: ResourceSchema, depth: number): Filter {
    if (depth > DEPTH_MAX) throw new Invalid();
    if (this.#accept('not')) {
      this.#expect('(');
      const filter = this.#either(schema, depth + 1);
      this.#expect(')');
      return { op: 'not', filter };
    }
    if (this.#accept('(')) {
      const filter = this.#either(schema, depth + 1);
      this.#expect(')');
      return filter;
    }
    const path = locate(schema, this.#take());
    const last = path?.at(-1);
    if (!path || !last) throw new Invalid();
    if (!this.#accept('[')) return this.#comparison(path);
    const { subAttributes } = last;
    if (!subAttributes) throw new Invalid();
    const inner = { ...schema, attributes: subAttributes, extensions: [] };
    const filter = this.#either(inner, depth + 1);
    this.#expect(']');
    // `emails[type eq "work"].value eq "a@example.com"`
    const sub = this.#tokens[this.#next]?.startsWith('.') ? locate(inner, this.#take().slice(1)) : undefined;
    if (sub === null) throw new Invalid();
    return {
      op: 'value',
      path,
      filter: sub ? { op: 'and', filters: [filter, this.#comparison(sub)] } : filter,
    };
  }

  #comparison(path: readonly Attribute[]): Filter {
    const word = this.#take().toLowerCase();
    const op = OPERATORS.find((each) => each === word);
    if (!op) throw new Invalid();
    return { op, path: toValue(path), value: op === 'pr' ? null : this.#literal() };
  }

  #literal(): Literal {
    const token = this.#take();
    try {
      const value: unknown = JSON.parse(token);
      if (value === null || ['string', 'number', 'boolean'].includes(typeof value)) return value as Literal;
    } catch {}
    throw new Invalid();
  }
}

/** A comparison with a list of complex values is one with their `value` (RFC 7644 section 3.4.2.2). */
function toValue(path: readonly Attribute[]): readonly Attribute[] {
  const last = path.at(-1);
  const value = last?.multiValued ? last.subAttributes?.find(({ name }) => name === 'value') : undefined;
  return value ? [...path, value] : path;
}

const invalid: ScimFailure = {
  status: 400,
  scimType: 'invalidFilter',
  detail: 'The filter is not valid, or names an attribute that does not exist (RFC 7644 section 3.4.2.2).',
};

/** @returns or `invalidFilter` */
export function readFilter(schema: ResourceSchema, text: string): Result<Filter, ScimFailure> {
  if (text.length > FILTER_MAX) return fail(invalid);
  try {
    return ok(new Parser(text).whole(schema));
  } catch (error) {
    if (error instanceof Invalid) return fail(invalid);
    throw error;
  }
}

/** The values at a path: those of every element of a list. */
function valuesAt(value: unknown, path: readonly Attribute[], from = 0): unknown[] {
  const attribute = path[from];
  if (attribute === undefined) return [value];
  const inner = isObject(value) && Object.hasOwn(value, attribute.name) ? value[attribute.name] : undefined;
  if (inner === undefined || inner === null) return [];
  return Array.isArray(inner)
    ? inner.flatMap((each) => valuesAt(each, path, from + 1))
    : valuesAt(inner, path, from + 1);
}

/** A value as its attribute compares it. Attributes that are not `caseExact` ignore case. */
function comparable(attribute: Attribute | undefined, value: unknown): Literal {
  if (typeof value !== 'string') return isObject(value) ? '[object]' : (value as Literal);
  const lower = value.toLowerCase();
  if (attribute?.type === 'boolean' && ['true', 'false'].includes(lower)) return lower === 'true';
  return attribute?.caseExact || attribute?.type === 'dateTime' ? value : lower;
}

export type Predicate = (value: unknown) => boolean;

/** Whether a resource, or a value of a complex attribute, satisfies the filter. */
export function predicateOf(filter: Filter): Predicate {
  switch (filter.op) {
    case 'and': {
      const all = filter.filters.map(predicateOf);
      return (value) => all.every((test) => test(value));
    }
    case 'or': {
      const any = filter.filters.map(predicateOf);
      return (value) => any.some((test) => test(value));
    }
    case 'not': {
      const test = predicateOf(filter.filter);
      return (value) => !test(value);
    }
    case 'value': {
      const test = predicateOf(filter.filter);
      return (value) => valuesAt(value, filter.path).some(test);
    }
    default:
      return comparisonOf(filter);
  }
}

function comparisonOf({ op, path, value: literal }: Comparison): Predicate {
  const attribute = path.at(-1);
  const expected = comparable(attribute, literal);
  const compare = COMPARISONS[op];
  // An attribute that is not assigned equals null and differs from everything else.
  const unassigned = op === 'eq' || op === 'ne' ? compare(null, expected) : false;
  return (resource) => {
    const found = valuesAt(resource, path);
    if (found.length === 0) return unassigned;
    return found.some((value) => compare(comparable(attribute, value), expected));
  };
}

/** The attribute and the text of a filter that is one `eq`, which the database can find; otherwise null. */
export function equality(filter: Filter): { attribute: string; value: string } | null {
  if (filter.op !== 'eq' || filter.path.length !== 1 || typeof filter.value !== 'string') return null;
  const [attribute] = filter.path;
  return attribute ? { attribute: attribute.name, value: filter.value } : null;
}

/** The number of comparisons in the filter. */
export function sizeOf(filter: Filter): number {
  if (filter.op === 'and' || filter.op === 'or')
    return filter.filters.reduce((sum, each) => sum + sizeOf(each), 0);
  return filter.op === 'not' || filter.op === 'value' ? sizeOf(filter.filter) : 1;
}
