import fc from 'fast-check';
import { operationsOf, type Parameter, type ReadableOperation } from '../../edge/documentation/openapi.ts';
import { DESCRIPTION } from './contract.ts';
import { hostileText, jsonOf, rawBody, spoiled } from './host/hostile-values.ts';
import { formOf, OPERATIONS } from './operations.ts';
import { type KnownValues, valuesOf } from './schema-values.ts';

/** Existing resources by their names in paths, queries and bodies. */
export interface Resources {
  known: KnownValues;
  /** Resources that may be deleted: the last name in the path of a DELETE. */
  expendable: KnownValues;
}

/** Kinds of callers; the test has a bearer token for each. */
export const CALLERS = [
  'owner',
  'admin',
  'operator',
  'viewer',
  'reader',
  'owner of another tenant',
  'user without a tenant',
  'own account',
  'half signed in',
  'refresh token',
  'expired',
  'tampered',
  'platform',
  'garbage',
  'anonymous',
] as const;
export type Caller = (typeof CALLERS)[number];

/** A request as sent over the wire, without its caller's bearer token. */
export interface HostileRequest {
  operation: string;
  caller: Caller;
  method: string;
  /** Path and query. */
  target: string;
  headers: Record<string, string>;
  /** Each character is a byte; null for no body. */
  body: string | null;
}

/** Methods that the HTTP server in front forwards; the gateway never receives others. */
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND', 'SEARCH', 'LOCK'];

/** A part of a request: valid values and invalid ones. */
interface Part<T> {
  honest: fc.Arbitrary<T>;
  odd: fc.Arbitrary<T>;
}

const mostly = <T>({ honest, odd }: Part<T>, weight: number): fc.Arbitrary<T> =>
  fc.oneof({ weight, arbitrary: honest }, { weight: 1, arbitrary: odd });

const encoded = (text: string) => encodeURIComponent(text.toWellFormed());

/** Unusual path segments. Bytes over 127 are excluded, because the HTTP server in front refuses them. */
const rawSegment = fc.oneof(
  fc.constantFrom('', '.', '..', '%2e%2e', '%2E', '..%2f..%2f', '%', '%z', '%00', '%0a', '%ff%fe', '%c0%ae'),
  fc.constantFrom('%E0%A4%A', '%25', '%2500', '%2F', '%5c', '%u0041', ';a=b', 'a%20b', '+', '*', '~'),
  fc.constantFrom(
    '../../../healthz',
    'x/../../projects',
    '//',
    'main/',
    '%6d%61in',
    '{branch_ref}',
    '$',
    '@',
  ),
  hostileText.map(encoded),
);

function pathsOf({ method, path, parameters }: ReadableOperation, resources: Resources): Part<string> {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  const segments = names.map((name, n): Part<string> => {
    const isDeleted =
      method === 'delete' && n === names.length - 1 && resources.expendable[name] !== undefined;
    const known = isDeleted ? resources.expendable : resources.known;
    const described = parameters.find((parameter) => parameter.in === 'path' && parameter.name === name);
    const values = valuesOf(described?.schema ?? {}, known, name);
    return { honest: values.map((value) => encoded(String(value))), odd: rawSegment };
  });
  const filled = (fillings: fc.Arbitrary<string>[]) =>
    fc.tuple(...fillings).map((texts) => {
      const left = texts.values();
      return path.replaceAll(/\{\w+\}/g, () => left.next().value ?? '');
    });
  const honest = filled(segments.map((segment) => segment.honest));
  const bent = fc
    .tuple(honest, rawSegment)
    .chain(([text, segment]) =>
      fc.constantFrom(`${text}/${segment}`, `${text}/`, `/${segment}${text}`, text.replace('/a', '/%61')),
    );
  return { honest, odd: fc.oneof(filled(segments.map((segment) => mostly(segment, 1))), bent) };
}

type Pair = readonly [string, string];

function queriesOf({ parameters }: ReadableOperation, { known }: Resources): Part<string> {
  const described = parameters.filter((parameter) => parameter.in === 'query');
  const pairOf = ({ name, schema }: Parameter) =>
    valuesOf(schema ?? {}, known, name).map((value): Pair => [name, String(value)]);
  const honest = fc
    .tuple(
      ...described.map((parameter) =>
        parameter.required ? pairOf(parameter) : fc.option(pairOf(parameter), { nil: null }),
      ),
    )
    .map((pairs) => pairs.filter((pair) => pair !== null));
  const names = fc.oneof(
    fc.constantFrom('limit', ...described.map(({ name }) => name)),
    fc.constantFrom('__proto__', 'limit[]', 'limit[gt]', 'access_token', ''),
    hostileText,
  );
  const one = fc.tuple(names, hostileText);
  const hostile = fc.oneof(
    fc.tuple(honest, one).map(([pairs, pair]) => [...pairs, pair]),
    fc.tuple(honest, one).map(([pairs, pair]) => [...pairs.filter(([name]) => name !== pair[0]), pair]),
    honest.map((pairs) => [...pairs, ...pairs]),
    fc.array(one, { maxLength: 30 }),
  );
  const spelled = (pairs: readonly Pair[]) =>
    pairs.map(([name, value]) => `${encoded(name)}=${encoded(value)}`).join('&');
  const raw = fc.constantFrom('%', '=', '&&', '%zz=1', 'limit=%ff', '?', 'limit', 'limit=1&limit=2');
  const withMark = (text: string) => text && `?${text}`;
  return {
    honest: honest.map(spelled).map(withMark),
    odd: fc
      .oneof({ weight: 5, arbitrary: hostile.map(spelled) }, { weight: 1, arbitrary: raw })
      .map(withMark),
  };
}

const latin1 = fc
  .string({ unit: fc.integer({ min: 0x20, max: 0xff }).map((code) => String.fromCharCode(code)) })
  .map((text) => text.replaceAll('\x7f', ''));
const headerText = fc.oneof(
  latin1,
  fc.constantFrom('', ' ', 'null', '__proto__', 'a'.repeat(256), 'x'.repeat(3000), ',', '"', '\xff'),
);

/** Headers for any request: some that all operations understand, and some that none does. */
const HEADERS: Record<string, fc.Arbitrary<string>> = {
  // Few values, so that they repeat, with other bodies too.
  'idempotency-key': fc.oneof(fc.constantFrom('one', 'two', 'three'), fc.uuid(), headerText),
  // Short, so that no request waits long for a disconnected host.
  prefer: fc.oneof(fc.constantFrom('wait=0', 'wait=1', 'wait=3, respond-async', 'wait=-1'), headerText),
  'x-request-id': fc.oneof(fc.uuid(), fc.constantFrom('short', 'request-1', '../../x'), headerText),
  'last-event-id': fc.oneof(fc.constantFrom('2026-01-31T12:00:00.000Z', '+275760-09-13', '0'), headerText),
  'content-type': fc.constantFrom('text/plain', 'application/json', 'multipart/form-data', 'x', ''),
  'content-encoding': fc.constantFrom('gzip', 'br'),
  accept: fc.constantFrom('text/html', '*/*', 'text/event-stream', 'application/xml'),
  origin: fc.constantFrom('null', 'https://evil.example'),
  'user-agent': headerText,
  'x-forwarded-for': fc.constantFrom('127.0.0.1', '203.0.113.9, 127.0.0.1', '::1'),
  'x-http-method-override': fc.constantFrom('DELETE'),
  'if-none-match': fc.constantFrom('*', '"x"'),
  range: fc.constantFrom('bytes=0-1'),
  cookie: headerText,
};

type Headers = Record<string, string>;

function headersOf({ parameters }: ReadableOperation, { known }: Resources): Part<Headers> {
  const described = parameters
    .filter((parameter) => parameter.in === 'header')
    .map(({ name, schema }) => [
      name,
      valuesOf(schema ?? {}, known, name).map((value) => String(value).replaceAll(/[^\x20-\x7e]/g, '?')),
    ]);
  return {
    honest: fc.record<Headers>(Object.fromEntries(described), { requiredKeys: [] }),
    odd: fc.record<Headers>(HEADERS, { requiredKeys: [] }),
  };
}

/** Client addresses, as Cloudflare sets them. */
const addresses = fc.oneof(
  fc.ipV4(),
  fc.ipV6(),
  fc.ipV4().map((address) => `::ffff:${address}`),
);

function bodiesOf({ body }: ReadableOperation, { known }: Resources): Part<string | null> {
  const [[type, media] = []] = Object.entries(body?.content ?? {});
  if (!media?.schema) return { honest: fc.constant(null), odd: rawBody };
  const values = valuesOf(media.schema, known) as fc.Arbitrary<Record<string, unknown>>;
  const encodedBody = (value: unknown) =>
    type === 'application/json' ? jsonOf(value) : formOf((value ?? {}) as Record<string, unknown>);
  return {
    honest: values.map(encodedBody),
    odd: fc.oneof(
      { weight: 5, arbitrary: spoiled(values).map(encodedBody) },
      { weight: 1, arbitrary: rawBody },
      { weight: 1, arbitrary: fc.constant(null) },
    ),
  };
}

const HONEST: Record<(typeof OPERATIONS)[number]['access'], Caller[]> = {
  user: ['owner', 'owner', 'admin', 'own account'],
  signed_in: ['owner', 'own account', 'user without a tenant'],
  pre_auth: ['half signed in'],
  platform: ['platform'],
  public: ['anonymous'],
};

function requestsFor(readable: ReadableOperation, resources: Resources): fc.Arbitrary<HostileRequest> {
  const { id, method, path } = readable;
  const access = OPERATIONS.find((operation) => operation.id === id)?.access ?? 'user';
  // Methods with an operation at this path are excluded: a DELETE would remove the resources the others use.
  const others = METHODS.filter((name) => !(name.toLowerCase() in (DESCRIPTION.paths?.[path] ?? {})));
  const parts = {
    caller: { honest: fc.constantFrom(...HONEST[access]), odd: fc.constantFrom(...CALLERS) },
    method: { honest: fc.constant(method.toUpperCase()), odd: fc.constantFrom(...others) },
    path: pathsOf(readable, resources),
    query: queriesOf(readable, resources),
    headers: headersOf(readable, resources),
    body: bodiesOf(readable, resources),
  };
  const operation = fc.constant(id);
  const honest = fc.record({
    operation,
    caller: parts.caller.honest,
    method: parts.method.honest,
    path: parts.path.honest,
    query: parts.query.honest,
    headers: parts.headers.honest,
    body: parts.body.honest,
  });
  // Most requests have one or two odd parts, because an early failure hides later ones.
  const hostile = fc.record({
    operation,
    caller: mostly(parts.caller, 7),
    method: mostly(parts.method, 25),
    path: mostly(parts.path, 4),
    query: mostly(parts.query, 4),
    headers: mostly(parts.headers, 2),
    body: mostly(parts.body, readable.body ? 1 : 15),
  });
  const requests = fc.oneof({ weight: 1, arbitrary: honest }, { weight: 2, arbitrary: hostile });
  return fc.tuple(requests, addresses).map(([{ path, query, headers, ...request }, address]) => ({
    ...request,
    target: path + query,
    headers: { ...headers, 'cf-connecting-ip': address },
  }));
}

/** Requests for all operations of the document, from valid ones to deliberately malformed ones. */
export const hostileRequests = (resources: Resources): fc.Arbitrary<HostileRequest> =>
  fc.oneof(...operationsOf(DESCRIPTION).map((operation) => requestsFor(operation, resources)));
