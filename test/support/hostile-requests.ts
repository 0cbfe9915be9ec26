import fc from 'fast-check';
import { operationsOf, type Parameter, type ReadableOperation } from '../../edge/documentation/openapi.ts';
import { DESCRIPTION } from './contract.ts';
import { hostileText, jsonOf, rawBody, spoiled } from './hostile-values.ts';
import { OPERATIONS } from './operations.ts';
import { type Known, valuesOf } from './schema-values.ts';

/** Real things by the names that paths, queries and bodies have for them. */
export interface Things {
  known: Known;
  /** Those that may go: what a DELETE names last. */
  expendable: Known;
}

/** Who sends a request; whoever sends it knows the bearer of each. */
export const CALLERS = [
  'owner',
  'admin',
  'operator',
  'viewer',
  'reader',
  'owner of another tenant',
  'user without a tenant',
  'expired',
  'tampered',
  'platform',
  'garbage',
  'nobody',
] as const;
export type Caller = (typeof CALLERS)[number];

/** A request as it goes over the wire, save its caller's bearer. */
export interface HostileRequest {
  operation: string;
  caller: Caller;
  method: string;
  /** Path and query. */
  target: string;
  headers: Record<string, string>;
  /** Each character is a byte; null for none. */
  body: string | null;
}

/** Methods that the HTTP server in front passes on; of others the gateway never hears. */
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND', 'SEARCH', 'LOCK'];

const mostly = <T>(honest: fc.Arbitrary<T>, hostile: fc.Arbitrary<T>, weight = 5): fc.Arbitrary<T> =>
  fc.oneof({ weight, arbitrary: honest }, { weight: 1, arbitrary: hostile });

const encoded = (text: string) => encodeURIComponent(text.toWellFormed());

/** Parts of a path as no client spells them. Bytes over 127 the HTTP server refuses before the gateway sees them. */
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

function pathsOf({ method, path, parameters }: ReadableOperation, things: Things): fc.Arbitrary<string> {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  const fillings = names.map((name, n) => {
    const isLast = n === names.length - 1;
    const known = method === 'delete' && isLast && things.expendable[name] ? things.expendable : things.known;
    const schema = parameters.find((parameter) => parameter.in === 'path' && parameter.name === name)?.schema;
    const honest = valuesOf(schema ?? {}, known, name).map((value) => encoded(String(value)));
    return mostly(honest, rawSegment, 12);
  });
  const filled = fc.tuple(...fillings).map((segments) => {
    let n = 0;
    return path.replaceAll(/\{\w+\}/g, () => segments[n++] ?? '');
  });
  const odd = fc
    .tuple(filled, rawSegment, fc.nat(3))
    .map(([text, segment, way]) =>
      way === 0
        ? `${text}/${segment}`
        : way === 1
          ? `${text}/`
          : way === 2
            ? `/${segment}${text}`
            : text.replace('/api/v1', '/%61pi/v1'),
    );
  return mostly(filled, odd, 15);
}

type Pair = readonly [string, string];

function queriesOf({ parameters }: ReadableOperation, { known }: Things): fc.Arbitrary<string> {
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
  return mostly(mostly(honest, hostile, 3).map(spelled), raw, 20).map((text) => text && `?${text}`);
}

const latin1 = fc
  .string({ unit: fc.integer({ min: 0x20, max: 0xff }).map((code) => String.fromCharCode(code)) })
  .map((text) => text.replaceAll('\x7f', ''));
const headerText = fc.oneof(
  latin1,
  fc.constantFrom('', ' ', 'null', '__proto__', 'a'.repeat(256), 'x'.repeat(3000), ',', '"', '\xff'),
);

/** Of every request: what all operations understand, and what none does. */
const HEADERS: Record<string, fc.Arbitrary<string>> = {
  // Few, so that they come again, with other bodies too.
  'idempotency-key': fc.oneof(fc.constantFrom('one', 'two', 'three'), fc.uuid(), headerText),
  // Rather short, so that a host that is away is not waited for.
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

function headersOf({ parameters }: ReadableOperation, { known }: Things) {
  const described = parameters.filter((parameter) => parameter.in === 'header');
  const honest = fc.record(
    Object.fromEntries(
      described.map(({ name, schema }) => [
        name,
        valuesOf(schema ?? {}, known, name).map((value) => String(value).replaceAll(/[^\x20-\x7e]/g, '?')),
      ]),
    ),
    { requiredKeys: [] },
  );
  return mostly(honest, fc.record(HEADERS, { requiredKeys: [] }), 3).map(
    (headers) => ({ ...headers }) as Record<string, string>,
  );
}

/** The address that a request comes from, as Cloudflare tells it. */
const addresses = fc.oneof(
  fc.ipV4(),
  fc.ipV6(),
  fc.ipV4().map((address) => `::ffff:${address}`),
);

function bodiesOf({ method, body }: ReadableOperation, { known }: Things): fc.Arbitrary<string | null> {
  const [media] = Object.values(body?.content ?? {});
  if (!media?.schema) return mostly(fc.constant(null), rawBody, method === 'get' ? 20 : 5);
  const honest = valuesOf(media.schema, known) as fc.Arbitrary<Record<string, unknown>>;
  return fc.oneof(
    { weight: 3, arbitrary: honest.map(jsonOf) },
    { weight: 4, arbitrary: spoiled(honest).map(jsonOf) },
    { weight: 1, arbitrary: rawBody },
    { weight: 1, arbitrary: fc.constant(null) },
  );
}

const HONEST: Record<(typeof OPERATIONS)[number]['access'], Caller[]> = {
  user: ['owner', 'owner', 'admin', 'operator'],
  platform: ['platform'],
  public: ['nobody'],
};

function requestsFor(readable: ReadableOperation, things: Things): fc.Arbitrary<HostileRequest> {
  const { id, method } = readable;
  // At its path they would be other operations: a DELETE would take away what all the others name.
  const others = METHODS.filter(
    (name) => !(name.toLowerCase() in (DESCRIPTION.paths?.[readable.path] ?? {})),
  );
  const access = OPERATIONS.find((operation) => operation.id === id)?.access ?? 'user';
  return fc
    .record({
      operation: fc.constant(id),
      caller: mostly(fc.constantFrom(...HONEST[access]), fc.constantFrom(...CALLERS), 6),
      method: mostly(fc.constant(method.toUpperCase()), fc.constantFrom(...others), 20),
      path: pathsOf(readable, things),
      query: queriesOf(readable, things),
      headers: headersOf(readable, things),
      address: addresses,
      body: bodiesOf(readable, things),
    })
    .map(({ path, query, address, headers, ...request }) => ({
      ...request,
      target: path + query,
      headers: { ...headers, 'cf-connecting-ip': address },
    }));
}

/** Requests of all operations of the document, from valid ones to such as no client sends by mistake. */
export const hostileRequests = (things: Things): fc.Arbitrary<HostileRequest> =>
  fc.oneof(...operationsOf(DESCRIPTION).map((operation) => requestsFor(operation, things)));
