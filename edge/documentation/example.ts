import {
  type Content,
  type Document,
  type Parameter,
  type ReadableOperation,
  referenceOf,
  resolve,
  type Schema,
} from './openapi.ts';

const STRINGS: Record<string, string> = {
  uuid: '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b',
  'date-time': '2026-01-31T12:00:00Z',
  date: '2026-01-31',
  email: 'ada@example.com',
  uri: 'https://example.com/',
  ipv4: '203.0.113.7',
  ipv6: '2001:db8::7',
};

/**
 * An example of the schema: the declared one, otherwise a generated one. Undefined for a recursive reference.
 */
export function exampleOf(document: Document, schema: Schema, visited: readonly string[] = []): unknown {
  const reference = referenceOf(schema);
  if (reference !== null && visited.includes(reference)) return undefined;
  const within = reference === null ? visited : [...visited, reference];
  const example = (part: Schema) => exampleOf(document, part, within);

  const found = resolve(document, schema);
  const declared = [found.example, found.examples?.[0], found.const, found.default, found.enum?.[0]];
  const first = declared.find((value) => value !== undefined);
  if (first !== undefined) return first;

  const variants = found.anyOf ?? found.oneOf;
  if (variants) return variants.map(example).find((value) => value !== undefined && value !== null) ?? null;

  const parts = (found.allOf ?? []).map(example).filter((value) => value !== undefined);
  if (parts.length > 0 && typeof parts[0] !== 'object') return parts[0];

  switch ([found.type].flat().find((type) => type !== 'null') ?? (parts.length > 0 ? 'object' : found.type)) {
    case 'object': {
      const { properties = {}, additionalProperties: others } = found;
      const fields = Object.entries(properties).map(([name, field]) => [name, example(field)]);
      return Object.assign(
        typeof others === 'object' ? { name: example(others) } : {},
        ...parts,
        Object.fromEntries(fields),
      );
    }
    case 'array':
      return [example(found.items ?? {})].filter((item) => item !== undefined);
    case 'string':
      return (
        STRINGS[found.format ?? ''] ?? 'text'.padEnd(found.minLength ?? 0, '-text').slice(0, found.maxLength)
      );
    case 'integer':
    case 'number':
      return found.minimum ?? Math.min(1, found.maximum ?? 1);
    case 'boolean':
      return true;
    case 'null':
      return null;
    default:
      return undefined;
  }
}

/** An example of a body of one media type, or of a parameter. */
export function exampleFor(
  document: Document,
  { example, examples, schema }: Content[string] | Parameter,
): unknown {
  const [named] = Object.values(examples ?? {});
  return example ?? (named && resolve(document, named).value) ?? (schema && exampleOf(document, schema));
}

const FORM = 'application/x-www-form-urlencoded';

const quoted = (text: string) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

/** curl's arguments for a body. */
const dataOf = (example: unknown, isForm: boolean): string[] =>
  isForm
    ? Object.entries(example ?? {}).map(([name, value]) => `--data-urlencode ${quoted(`${name}=${value}`)}`)
    : [`-d ${quoted(JSON.stringify(example) ?? '')}`];

/** A curl command that calls the operation, with its required parameters. */
export function curlOf(document: Document, operation: ReadableOperation): string {
  const { method, path, parameters, body, isPublic } = operation;
  const required = (location: Parameter['in']) =>
    parameters
      .filter((parameter) => parameter.in === location && parameter.required)
      .map(({ name, ...rest }) => [name, String(exampleFor(document, { name, ...rest }) ?? name)] as const);

  const address = required('path').reduce(
    (text, [name, value]) => text.replaceAll(`{${name}}`, encodeURIComponent(value)),
    path,
  );
  const query = new URLSearchParams(required('query').map(([name, value]) => [name, value])).toString();
  const [[type, content] = []] = Object.entries(body?.content ?? {});
  return [
    `curl${method === 'get' ? '' : ` -X ${method.toUpperCase()}`} "$BASE_URL${address}${query && `?${query}`}"`,
    !isPublic && '-H "Authorization: Bearer $TOKEN"',
    ...required('header').map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    type && type !== FORM && `-H 'Content-Type: ${type}'`,
    ...(content ? dataOf(exampleFor(document, content), type === FORM) : []),
  ]
    .filter(Boolean)
    .join(' \\\n  ');
}
