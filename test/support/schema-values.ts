import fc from 'fast-check';
import { exampleOf } from '../../edge/documentation/example.ts';
import { referenceOf, resolve, type Schema } from '../../edge/documentation/openapi.ts';
import { DESCRIPTION } from './contract.ts';

/** Values of existing resources, by the names of parameters and fields. */
export type KnownValues = Readonly<Partial<Record<string, readonly unknown[]>>>;

const FORMATS: Record<string, fc.Arbitrary<string>> = {
  uuid: fc.uuid(),
  email: fc.emailAddress(),
  'date-time': fc.date({ noInvalidDate: true }).map((date) => date.toISOString()),
};

const MAX_LENGTH = 1000;
const MAX_ITEMS = 5;

interface Bounds {
  format?: string;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
}

function texts({ format = '', pattern, minLength = 0, maxLength = 100 }: Bounds): fc.Arbitrary<string> {
  const formatted = FORMATS[format];
  if (formatted) return formatted;
  if (pattern === undefined) {
    return fc.string({ unit: 'grapheme', minLength, maxLength: Math.min(maxLength, MAX_LENGTH) });
  }
  return fc
    .stringMatching(new RegExp(pattern))
    .map((text) => text.slice(0, maxLength).padEnd(minLength, text || 'x'));
}

/** Values that a schema of the document allows. @param name key in `known` */
export function valuesOf(
  schema: Schema,
  known: KnownValues,
  name = '',
  visited: readonly string[] = [],
): fc.Arbitrary<unknown> {
  const reference = referenceOf(schema);
  if (reference !== null && visited.includes(reference)) return fc.constant(null);
  const within = reference === null ? visited : [...visited, reference];
  const parts = (part: Schema, of = name) => valuesOf(part, known, of, within);

  const found = resolve(DESCRIPTION, schema);
  const generated = (): fc.Arbitrary<unknown> => {
    if (found.const !== undefined) return fc.constant(found.const);
    if (found.enum) return fc.constantFrom(...found.enum);
    const variants = found.anyOf ?? found.oneOf;
    if (variants) return fc.oneof(...variants.map((variant) => parts(variant)));
    const [type] = [found.type].flat();
    switch (type) {
      case 'object': {
        const { properties = {}, required = [], additionalProperties: others } = found;
        const fields = Object.entries(properties).map(([field, part]) => [field, parts(part, field)]);
        const record = fc.record<Record<string, unknown>>(Object.fromEntries(fields), {
          requiredKeys: required,
        });
        if (typeof others !== 'object') return record;
        return fc.dictionary(fc.string({ minLength: 1 }), parts(others), { maxKeys: MAX_ITEMS });
      }
      case 'array': {
        const { items = {}, minItems = 0, maxItems = MAX_ITEMS } = found;
        return fc.array(parts(items), { minLength: minItems, maxLength: Math.min(maxItems, MAX_ITEMS) });
      }
      case 'string':
        return texts(found);
      case 'integer':
        return fc.maxSafeInteger().map((n) => wrapped(n, found.minimum, found.maximum));
      case 'number':
        return fc.double({
          min: found.minimum ?? -1e9,
          max: found.maximum ?? 1e9,
          minExcluded: typeof found.exclusiveMinimum === 'number',
          noNaN: true,
        });
      case 'boolean':
        return fc.boolean();
      default:
        return fc.constant(null);
    }
  };

  const existing = known[name];
  const example = exampleOf(DESCRIPTION, schema);
  return fc.oneof(
    ...(existing?.length ? [{ weight: 30, arbitrary: fc.constantFrom(...existing) }] : []),
    ...(example === undefined ? [] : [{ weight: 1, arbitrary: fc.constant(example) }]),
    { weight: 2, arbitrary: generated() },
  );
}

/** Maps any integer into the bounds; small values are as likely as large ones. */
function wrapped(n: number, minimum = -(2 ** 31), maximum = 2 ** 31 - 1): number {
  return minimum + (Math.abs(n) % (maximum - minimum + 1));
}
