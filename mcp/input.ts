import { z } from 'zod';

/** The example that a field of a tool shows with its errors and in its JSON schema. */
const exampleOf = (schema: z.core.$ZodType | undefined): unknown => {
  const examples = schema && z.globalRegistry.get(schema)?.examples;
  return Array.isArray(examples) ? examples[0] : undefined;
};

/** The type of a field without what makes it optional. */
function typeOf(schema: z.core.$ZodType): z.core.$ZodType {
  return schema instanceof z.ZodOptional || schema instanceof z.ZodDefault
    ? typeOf(schema._zod.def.innerType)
    : schema;
}

/** Undefined for text that is no JSON. */
function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A value in the type of its field, if models write it in another form that can mean nothing else. */
function asMeant(schema: z.core.$ZodType, value: unknown): unknown {
  const type = typeOf(schema);
  if (type instanceof z.ZodString) return typeof value === 'number' ? String(value) : value;
  if (typeof value !== 'string') return value;
  if (type instanceof z.ZodNumber) return /^\s*-?\d+(\.\d+)?\s*$/.test(value) ? Number(value) : value;
  if (type instanceof z.ZodBoolean) return { true: true, false: false }[value.trim().toLowerCase()] ?? value;
  const read = fromJson(value);
  if (type instanceof z.ZodArray) return Array.isArray(read) ? read : value;
  if (type instanceof z.ZodRecord) return typeof read === 'object' && read !== null ? read : value;
  return value;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * The schema of a tool's input for the protocol. It also takes numbers, booleans, lists and objects as text,
 * numbers for text, null for absent values and no input at all. Its issues name the field, with an example.
 */
export function tolerant<Input extends z.ZodObject>(input: Input) {
  const { shape } = input;
  const clear = (given: unknown): unknown =>
    isObject(given)
      ? Object.fromEntries(
          Object.entries(given)
            .filter(([, value]) => value !== null)
            .map(([name, value]) => [name, shape[name] ? asMeant(shape[name], value) : value]),
        )
      : (given ?? {});
  const explained = ({ path, message, code }: z.core.$ZodIssue) => {
    if (code === 'unrecognized_keys')
      return { path, message: `${message}. Known: ${Object.keys(shape).join(', ') || 'none'}.` };
    const example = exampleOf(shape[String(path[0])]);
    return {
      path,
      message: example === undefined ? message : `${message}. For instance: ${JSON.stringify(example)}.`,
    };
  };
  return {
    '~standard': {
      ...input['~standard'],
      validate(given: unknown): { value: z.output<Input> } | { issues: ReturnType<typeof explained>[] } {
        const { data, error } = input.safeParse(clear(given));
        return error ? { issues: error.issues.map(explained) } : { value: data };
      },
    },
  };
}
