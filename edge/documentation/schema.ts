import { html } from 'hono/html';
import { type Document, nameOf, type ResolvedSchema, referenceOf, resolve, type Schema } from './openapi.ts';
import { line, type Markup, paragraphs, schemaLink } from './text.ts';

/** One row of a table: a field of a body, or a parameter. */
export interface Field {
  /** With a dot for nested objects and `[]` for arrays: `series[].metric`. */
  name: string;
  schema: Schema;
  required: boolean;
  description?: string | undefined;
  /** Where a parameter is: `path`, `query` or `header`. */
  location?: string;
}

const json = (value: unknown) => JSON.stringify(value);
const counted = (count: number, noun: string) => `${count} ${noun}${count === 1 ? '' : 's'}`;

/** The text of each JSON Schema keyword, in the order of their display. */
const CONSTRAINTS = {
  const: (value: unknown) => `always ${json(value)}`,
  enum: (values: unknown[]) => `${values.length === 1 ? 'always' : 'one of'} ${values.map(json).join(', ')}`,
  minLength: (least: number) => `at least ${counted(least, 'character')}`,
  maxLength: (most: number) => `at most ${counted(most, 'character')}`,
  pattern: (pattern: string) => `matches \`${pattern}\``,
  minimum: (least: number) => `at least ${least}`,
  exclusiveMinimum: (bound: number) => `more than ${bound}`,
  maximum: (most: number) => `at most ${most}`,
  exclusiveMaximum: (bound: number) => `less than ${bound}`,
  multipleOf: (step: number) => `a multiple of ${step}`,
  minItems: (least: number) => `at least ${counted(least, 'item')}`,
  maxItems: (most: number) => `at most ${counted(most, 'item')}`,
  uniqueItems: (unique: boolean) => (unique ? 'no item twice' : ''),
  default: (value: unknown) => `default ${json(value)}`,
} satisfies Partial<Record<keyof ResolvedSchema, (value: never) => string>>;

function partsOf(schema: Schema): Schema[] {
  const { allOf = [], anyOf = [], oneOf = [] } = schema as ResolvedSchema;
  return [...allOf, ...anyOf, ...oneOf];
}

/** The names of the schemas that a schema consists of; empty unless all its parts are named. */
export function schemaNames(schema: Schema): string[] {
  const reference = referenceOf(schema);
  const parts = reference === null ? partsOf(schema).map(schemaNames) : [[nameOf(reference)]];
  return parts.every((names) => names.length > 0) ? parts.flat() : [];
}

function constraintsOf(schema: Schema): string[] {
  if (referenceOf(schema) !== null) return [];
  const found = schema as ResolvedSchema;
  const own = Object.entries(CONSTRAINTS).map(([keyword, describe]) => {
    const value: unknown = found[keyword as keyof ResolvedSchema];
    return value === undefined ? '' : describe(value as never);
  });
  const items = found.items ? constraintsOf(found.items).map((constraint) => `each ${constraint}`) : [];
  return [...own, ...partsOf(found).flatMap(constraintsOf), ...items].filter(
    (constraint) => constraint !== '',
  );
}

const joined = (parts: Markup[], word: string) =>
  html`${parts.map((part, n) => [n > 0 && ` ${word} `, part])}`;

/** The type in words: `string (uuid) or null`, `array of Branch`, with links to the named schemas. */
function typeOf(schema: Schema): Markup {
  const reference = referenceOf(schema);
  if (reference !== null) return schemaLink(nameOf(reference));
  const { type, format, items, additionalProperties: others, allOf, anyOf, oneOf } = schema as ResolvedSchema;
  const variants = anyOf ?? oneOf;
  if (variants) return joined(variants.map(typeOf), 'or');
  if (allOf) return joined(allOf.filter((part) => '$ref' in part || 'type' in part).map(typeOf), 'and');
  const types = [type ?? 'value'].flat().map((name) => {
    if (name === 'array') return html`array of ${typeOf(items ?? {})}`;
    if (name === 'object' && typeof others === 'object') return html`map of ${typeOf(others)}`;
    return html`${name}${name === 'string' && format ? ` (${format})` : ''}`;
  });
  return joined(types, 'or');
}

/**
 * The fields of a schema, including those of nested unnamed schemas. A nested named schema links to its own
 * section, which also ends cycles; `visited` ends those of schemas that refer to themselves directly.
 */
function fieldsOf(document: Document, schema: Schema, path = '', visited: string[] = []): Field[] {
  const reference = referenceOf(schema);
  if (reference !== null) {
    if (path !== '' || visited.includes(reference)) return [];
    return fieldsOf(document, resolve(document, schema), path, [...visited, reference]);
  }
  const { properties = {}, required = [], items, ...rest } = schema as ResolvedSchema;
  return [
    ...Object.entries(properties).flatMap(([name, field]) => [
      { name: path + name, schema: field, required: required.includes(name) },
      ...fieldsOf(document, field, `${path}${name}.`, visited),
    ]),
    ...(items ? fieldsOf(document, items, `${path.replace(/\.$/, '')}[].`, visited) : []),
    ...partsOf(rest).flatMap((part) => fieldsOf(document, part, path, visited)),
  ];
}

/** The values of the field `error` in a failure's body. */
export function codesOf(document: Document, schema: Schema): string[] {
  const errors = fieldsOf(document, schema).filter(({ name }) => name === 'error');
  return errors.flatMap((field) => {
    const { enum: values, const: only } = resolve(document, field.schema);
    return (values ?? [only ?? []].flat()).map(String);
  });
}

function row({ name, location, schema, required, description }: Field): Markup {
  const facts = [location, required ? 'required' : 'optional', ...constraintsOf(schema)].filter(Boolean);
  const text = description ?? [schema, ...partsOf(schema)].find((part) => part.description)?.description;
  return html`<tr><th scope="row"><code>${name}</code></th>
<td><span class="type">${typeOf(schema)}</span> <span class="facts">${line(facts.join(', '))}</span>
${paragraphs(text)}</td></tr>`;
}

/** A table of fields or parameters; nothing if there are none. */
export function fieldTable(kind: string, fields: Field[]): Markup {
  const distinct = new Map(fields.map((field) => [json(field), field]));
  if (distinct.size === 0) return html``;
  return html`<table><thead><tr><th scope="col">${kind}</th><th scope="col">Meaning</th></tr></thead>
<tbody>${[...distinct.values()].map(row)}</tbody></table>`;
}

/** A labelled schema: type, constraints and fields. The fields of a named schema are in its own section. */
export function schemaTable(document: Document, schema: Schema, label: string): Markup {
  const constraints = constraintsOf(schema).join(', ');
  return html`<p class="facts">${label}: <span class="type">${typeOf(schema)}</span>${constraints && ', '}${line(constraints)}</p>
${referenceOf(schema) === null && fieldTable('Field', fieldsOf(document, schema))}`;
}
