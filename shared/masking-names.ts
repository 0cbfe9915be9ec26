/**
 * What the rules of a masking policy name. Apart from their schemas, because the console imports this file, and its
 * content security policy refuses the code that zod makes at run time.
 */

const DEFAULT_SCHEMA = 'public';

/** The schema and the name that a rule's `table` means. */
export function tableOf({ table }: { table: string }): { schema: string; name: string } {
  const dot = table.indexOf('.');
  return dot < 0
    ? { schema: DEFAULT_SCHEMA, name: table }
    : { schema: table.slice(0, dot), name: table.slice(dot + 1) };
}

/** The column of a rule, as it is compared and shown: `public.customer.email`. */
export const columnOf = (rule: { table: string; column: string }): string => {
  const { schema, name } = tableOf(rule);
  return `${schema}.${name}.${rule.column}`;
};

/** Constants for types that have no empty text, by the name that PostgreSQL shows. */
const CONSTANTS: readonly (readonly [type: RegExp, value: string])[] = [
  [/\[\]$|^jsonb?$/, '{}'],
  [/^inet$/, '0.0.0.0'],
  [/^cidr$/, '0.0.0.0/0'],
  [/^macaddr$/, '00:00:00:00:00:00'],
  [/^macaddr8$/, '00:00:00:00:00:00:00:00'],
  [/^boolean$/, 'false'],
  [/^(?:time|interval)/, '00:00:00'],
];

/** A constant that a column of this type accepts, as far as it is known. */
export const constantFor = (type: string): string =>
  CONSTANTS.find(([pattern]) => pattern.test(type))?.[1] ?? '';
