import fc from 'fast-check';
import { exampleOf } from '../../edge/documentation/example.ts';
import { referenceOf, resolve, type Schema } from '../../edge/documentation/openapi.ts';
import { DESCRIPTION } from './contract.ts';

/** Values that stand for real things, by the names that parameters and fields have for them. */
export type KnownValues = Readonly<Partial<Record<string, readonly unknown[]>>>;

const FORMATS: Record<string, fc.Arbitrary<string>> = {
  uuid: fc.uuid(),
  email: fc.emailAddress(),
  'date-time': fc.date({ noInvalidDate: true }).map((date) => date.toISOString()),
};

const LONGEST = 1000;
const MOST = 5;

interface Bounds {
  format?: string;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
}

function texts({ format = '', pattern, minLength = 0, maxLength = 100 }: Bounds): fc.Arbitrary<string> {
  const ofForm = FORMATS[format];
  if (ofForm) return ofForm;
  if (pattern === undefined) {
    return fc.string({ unit: 'grapheme', minLength, maxLength: Math.min(maxLength, LONGEST) });
  }
  return fc
    .stringMatching(new RegExp(pattern))
    .map((text) => text.slice(0, maxLength).padEnd(minLength, text || 'x'));
}

/** Values that a schema of the document allows. @param name by which `known` has real things */
export function valuesOf(
  schema: Schema,
  known: KnownValues,
  name = '',
  passed: readonly string[] = [],
): fc.Arbitrary<unknown> {
  const reference = referenceOf(schema);
  if (reference !== null && passed.includes(reference)) return fc.constant(null);
  const within = reference === null ? passed : [...passed, reference];
  const parts = (part: Schema, of = name) => valuesOf(part, known, of, within);

  const found = resolve(DESCRIPTION, schema);
  const made = (): fc.Arbitrary<unknown> => {
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
        return fc.dictionary(fc.string({ minLength: 1 }), parts(others), { maxKeys: MOST });
      }
      case 'array': {
        const { items = {}, minItems = 0, maxItems = MOST } = found;
        return fc.array(parts(items), { minLength: minItems, maxLength: Math.min(maxItems, MOST) });
      }
      case 'string':
        return texts(found);
      case 'integer':
        return fc.maxSafeInteger().map((n) => brought(n, found.minimum, found.maximum));
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

  const things = known[name];
  const example = exampleOf(DESCRIPTION, schema);
  return fc.oneof(
    ...(things?.length ? [{ weight: 30, arbitrary: fc.constantFrom(...things) }] : []),
    ...(example === undefined ? [] : [{ weight: 1, arbitrary: fc.constant(example) }]),
    { weight: 2, arbitrary: made() },
  );
}

/** Any integer, brought between bounds; small ones are as likely as large ones. */
function brought(n: number, minimum = -(2 ** 31), maximum = 2 ** 31 - 1): number {
  return minimum + (Math.abs(n) % (maximum - minimum + 1));
}
