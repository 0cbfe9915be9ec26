import { readFileSync, writeFileSync } from 'node:fs';
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import {
  type Document,
  operationsOf,
  type Response,
  resolve,
  type Schema,
} from '../../edge/documentation/openapi.ts';
import { FAILURES, type FailureCode } from '../../shared/failures.ts';
import { oncePerRun } from './run-folder.ts';

/** A response of the gateway as received over the wire. */
export interface WireResponse {
  method: string;
  /** Includes the query, if any. */
  path: string;
  status: number;
  headers: Headers;
  bodyText: string;
}

/** A response differs from the API description. Tests never retry after it. */
export class ContractError extends Error {
  override name = 'ContractError';
}

/** Made once a run: a process takes 2 s to load all routes of the gateway. */
const descriptionFile = await oncePerRun('openapi.json', async (path) => {
  const { app } = await import('../../edge/app.ts');
  const { descriptionOf } = await import('../../edge/documentation/describe.ts');
  writeFileSync(path, JSON.stringify(descriptionOf(app)));
});

/** The OpenAPI document at `/api/v1/openapi.json`. */
export const DESCRIPTION: Document = JSON.parse(readFileSync(descriptionFile, 'utf8'));

const { components = {} } = DESCRIPTION;

/** Literal paths come first, because `lookup` is not a `{branch_ref}`. */
const OPERATIONS = operationsOf(DESCRIPTION)
  .map(({ id, method, path, responses }) => ({
    id,
    method: method.toUpperCase(),
    form: new RegExp(`^${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
    parameters: path.split('{').length,
    responses: new Map(responses),
  }))
  .sort((one, other) => one.parameters - other.parameters);

// The document uses keywords outside of JSON Schema, such as `example`.
const ajv = new Ajv2020({ allErrors: true, strictSchema: false, validateSchema: false });
addFormats.default(ajv);
/** Refers to components as schemas of their own, so that each is compiled once and not with each response. */
const withOwnComponents = (schema: Schema): Schema =>
  JSON.parse(JSON.stringify(schema).replaceAll('"#/components/schemas/', '"component:'));
for (const [name, schema] of Object.entries(components.schemas ?? {}))
  ajv.addSchema(withOwnComponents(schema), `component:${name}`);

const validators = new Map<Schema, ValidateFunction>();

/** @returns the differences between the value and a schema of the document */
function differences(schema: Schema, value: unknown): string[] {
  const validate = validators.get(schema) ?? ajv.compile(withOwnComponents(schema));
  validators.set(schema, validate);
  if (validate(value)) return [];
  return (validate.errors ?? []).map(
    ({ instancePath, message, params }) => `${instancePath || 'it'} ${message} ${JSON.stringify(params)}`,
  );
}

/** Without an operation only a failure is valid. A response to HEAD has no body that names the failure. */
function failureWithoutOperation({ method, path, status, bodyText }: WireResponse): Response | undefined {
  // A path of SCIM has errors of SCIM.
  if (path.startsWith('/scim/'))
    return OPERATIONS.find(({ id }) => id === 'scimGetUser')?.responses.get(`${status}`);
  const reported = method === 'HEAD' ? null : (JSON.parse(bodyText) as { error: string }).error;
  const found = Object.entries(components.responses ?? {}).find(([name]) =>
    name
      .split('.')
      .some((code) => (reported ?? code) === code && FAILURES[code as FailureCode].status === status),
  );
  return found && resolve(DESCRIPTION, found[1]);
}

function* headerDifferences({ headers }: WireResponse, described: Response): Generator<string> {
  for (const [name, component] of Object.entries(components.headers ?? {})) {
    const value = headers.get(name);
    const { required, schema } = resolve(DESCRIPTION, component);
    const isDescribed = described.headers?.[name] !== undefined;
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

/** Fields that grant access to a reader. */
const SECRETS = [
  'access_token',
  'refresh_token',
  'pre_auth_token',
  'secret',
  'database_url',
  'enrolment_token',
  'key',
];

function* bodyDifferences(response: WireResponse, described: Response): Generator<string> {
  const { method, status, headers, bodyText } = response;
  if (method === 'HEAD') {
    if (bodyText !== '') yield 'there is a body';
    return;
  }
  const type = headers.get('Content-Type')?.split(';')[0] ?? null;
  const content = Object.entries(described.content ?? {});
  if (content.length === 0) {
    if (type !== null || bodyText !== '') yield 'there is a body';
    return;
  }
  const [, media] = content.find(([name]) => name === type) ?? [];
  if (!media) {
    yield `the body is ${type}, not ${content.map(([name]) => name).join(', ')}`;
  } else if (/^application\/(?:scim\+)?json$/.test(type ?? '')) {
    const body = JSON.parse(bodyText) as Record<string, unknown>;
    yield* differences(media.schema ?? {}, body);
    const isOther = status >= 400 && 'request_id' in body && body.request_id !== headers.get('X-Request-Id');
    if (isOther) yield 'request_id is not X-Request-Id';
    const secret = SECRETS.find((field) => typeof body[field] === 'string');
    if (secret && headers.get('Cache-Control') !== 'no-store') yield `a cache may store ${secret}`;
  }
}

/**
 * Compares a response with the document: status, headers, media type and body.
 * @throws ContractError with operation, status and differences
 */
export function checkResponse(response: WireResponse): void {
  const { method, path, status, bodyText } = response;
  const [pathname = ''] = path.split('?');
  // HEAD has the response of GET without the body (RFC 9110, 9.3.2).
  const verb = method === 'HEAD' ? 'GET' : method;
  const operation = OPERATIONS.find((known) => known.method === verb && known.form.test(pathname));
  const described = operation ? operation.responses.get(`${status}`) : failureWithoutOperation(response);
  const found = described
    ? [...headerDifferences(response, described), ...bodyDifferences(response, described)]
    : ['the status is not described'];
  if (found.length === 0) return;
  const head = `${operation?.id ?? 'no operation'} (${method} ${path}) ${status} differs from the description`;
  throw new ContractError([head, ...found, bodyText.slice(0, 500)].join('\n  '));
}
