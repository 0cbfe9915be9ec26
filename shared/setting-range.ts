import { z } from 'zod';

/** Described with `meta({ form })` where the type of a setting does not say what it accepts. */
const formOf = (schema: z.ZodType): string | undefined => schema.meta()?.form as string | undefined;

/** The schema of what is given, without its default and what it becomes. */
function innerOf(schema: z.ZodType): z.ZodType {
  if (schema instanceof z.ZodDefault || schema instanceof z.ZodOptional) return schema.unwrap() as z.ZodType;
  return schema instanceof z.ZodPipe ? (schema.in as z.ZodType) : schema;
}

function rangeOfNumber(number: z.ZodNumber): string {
  const { minValue, maxValue, isInt } = number;
  const kind = isInt ? 'integer' : 'number';
  const from = number.safeParse(minValue).success ? 'from' : 'above';
  const isOpen = maxValue === null || maxValue >= Number.MAX_SAFE_INTEGER;
  return `${kind} ${from} ${minValue}${isOpen ? '' : ` to ${maxValue}`}`;
}

/** What a setting accepts, for instance "integer from 1 to 100". */
export function rangeOf(schema: z.ZodType): string {
  const form = formOf(schema);
  if (form !== undefined) return form;
  const inner = innerOf(schema);
  if (inner !== schema) return rangeOf(inner);
  if (schema instanceof z.ZodNumber) return rangeOfNumber(schema);
  if (schema instanceof z.ZodEnum) return schema.options.join(', ').replace(/, (?=[^,]*$)/, ' or ');
  if (schema instanceof z.ZodURL) return 'URL';
  return 'text';
}

/**
 * Names each missing or invalid setting with what it accepts, and never its value.
 * @returns for instance "missing or invalid settings: BRANCH_LIMIT_MAX (integer from 1 to 100)"
 */
export function faultsOf(shape: Readonly<Record<string, z.ZodType>>, error: z.ZodError): string {
  const names = [...new Set(error.issues.map(({ path }) => String(path[0])))];
  const described = names.map((name) => `${name} (${shape[name] ? rangeOf(shape[name]) : 'unknown'})`);
  return `missing or invalid settings: ${described.join(', ')}`;
}
