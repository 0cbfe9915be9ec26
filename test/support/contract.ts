import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { app } from '../../edge/app.ts';
import { descriptionOf } from '../../edge/documentation/describe.ts';
import {
  type Document,
  operationsOf,
  type Response,
  resolve,
  type Schema,
} from '../../edge/documentation/openapi.ts';
import { FAILURES, type FailureCode } from '../../shared/failures.ts';

/** An answer of the gateway as it came over the wire. */
export interface WireResponse {
  method: string;
  /** With its query, if it has one. */
  path: string;
  status: number;
  headers: Headers;
  bodyText: string;
}

/** An answer is not as the API describes it. Never a reason to ask again. */
export class ContractError extends Error {
  override name = 'ContractError';
}

/** What the API says of itself: the document at `/api/v1/openapi.json`. */
export const DESCRIPTION: Document = descriptionOf(app);

const { components = {} } = DESCRIPTION;

/** Literal paths come first, because `lookup` is no `{branch_id}`. */
const OPERATIONS = operationsOf(DESCRIPTION)
  .map(({ id, method, path, responses }) => ({
    id,
    method: method.toUpperCase(),
    form: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
    parameters: path.split('{').length,
    responses: new Map(responses),
  }))
  .sort((one, other) => one.parameters - other.parameters);

// The document has words that are none of JSON Schema's: `example`.
const ajv = new Ajv2020({ allErrors: true, strictSchema: false, validateSchema: false });
addFormats.default(ajv);

const validators = new Map<Schema, ValidateFunction>();

/** @returns what differs from a schema of the document */
function differences(schema: Schema, value: unknown): string[] {
  const validate = validators.get(schema) ?? ajv.compile({ ...schema, components });
  validators.set(schema, validate);
  if (validate(value)) return [];
  return (validate.errors ?? []).map(
    ({ instancePath, message, params }) => `${instancePath || 'it'} ${message} ${JSON.stringify(params)}`,
  );
}

/** Where there is no operation nothing but a failure is answered. To HEAD it has no body that names it. */
function failureWithoutOperation({ method, status, bodyText }: WireResponse): Response | undefined {
  const told = method === 'HEAD' ? null : (JSON.parse(bodyText) as { error: string }).error;
  const found = Object.entries(components.responses ?? {}).find(([name]) =>
    name
      .split('.')
      .some((code) => (told ?? code) === code && FAILURES[code as FailureCode].status === status),
  );
  return found && resolve(DESCRIPTION, found[1]);
}

function* headerDifferences({ headers }: WireResponse, response: Response): Generator<string> {
  for (const [name, component] of Object.entries(components.headers ?? {})) {
    const value = headers.get(name);
    const { required, schema } = resolve(DESCRIPTION, component);
    const isDescribed = response.headers?.[name] !== undefined;
    if (value === null) {
      if (isDescribed && required) yield `${name} is missing`;
    } else if (!isDescribed) {
      yield `${name} is not described`;
    } else {
      const isNumber = schema !== undefined && 'type' in schema && schema.type === 'integer';
      const read = isNumber && /^\d+$/.test(value) ? Number(value) : value;
      yield* differences(schema ?? {}, read).map((difference) => `${name} ${value}: ${difference}`);
    }
  }
  const [limit, remaining, reset] = ['Limit', 'Remaining', 'Reset'].map((name) =>
    Number(headers.get(`X-RateLimit-${name}`)),
  ) as [number, number, number];
  if (remaining > limit) yield 'X-RateLimit-Remaining is more than X-RateLimit-Limit';
  if (Math.abs(reset - Date.now() / 1000) > 2 * 3600) yield `X-RateLimit-Reset is not soon: ${reset}`;
}

/** Fields that open something for whoever reads them. */
const SECRETS = [
  'access_token',
  'refresh_token',
  'pre_auth_token',
  'secret',
  'database_url',
  'enrolment_token',
];

function* bodyDifferences(answer: WireResponse, response: Response): Generator<string> {
  const { method, status, headers, bodyText } = answer;
  if (method === 'HEAD') {
    if (bodyText !== '') yield 'there is a body';
    return;
  }
  const type = headers.get('Content-Type')?.split(';')[0] ?? null;
  const content = Object.entries(response.content ?? {});
  if (content.length === 0) {
    if (type !== null || bodyText !== '') yield 'there is a body';
    return;
  }
  const [, described] = content.find(([name]) => name === type) ?? [];
  if (!described) {
    yield `the body is ${type}, not ${content.map(([name]) => name).join(', ')}`;
  } else if (type === 'application/json') {
    const body = JSON.parse(bodyText) as Record<string, unknown>;
    yield* differences(described.schema ?? {}, body);
    const isOther = status >= 400 && body.request_id !== headers.get('X-Request-Id');
    if (isOther) yield 'request_id is not X-Request-Id';
    const secret = SECRETS.find((field) => typeof body[field] === 'string');
    if (secret && headers.get('Cache-Control') !== 'no-store') yield `a cache may keep ${secret}`;
  }
}

/**
 * Compares an answer with what the document says of its operation: status, headers, media type and body.
 * @throws ContractError that names operation and status and says what differs
 */
export function checkResponse(answer: WireResponse): void {
  const { method, path, status, bodyText } = answer;
  const [pathname = ''] = path.split('?');
  // HEAD is answered as GET is, without the body (RFC 9110, 9.3.2).
  const asked = method === 'HEAD' ? 'GET' : method;
  const operation = OPERATIONS.find((known) => known.method === asked && known.form.test(pathname));
  const response = operation ? operation.responses.get(`${status}`) : failureWithoutOperation(answer);
  const found = response
    ? [...headerDifferences(answer, response), ...bodyDifferences(answer, response)]
    : ['the status is not described'];
  if (found.length === 0) return;
  const head = `${operation?.id ?? 'no operation'} (${method} ${path}) ${status} is not as described`;
  throw new ContractError([head, ...found, bodyText.slice(0, 500)].join('\n  '));
}
