import { setTimeout as sleep } from 'node:timers/promises';
import { eq } from 'drizzle-orm';
import { beforeAll, describe, expect, test } from 'vitest';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { operationsOf, resolve, type Schema } from '../../../edge/documentation/openapi.ts';
import { Api } from '../../support/api.ts';
import { DESCRIPTION } from '../../support/contract.ts';
import { eventually } from '../../support/eventually.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

/**
 * Times of the past in a project whose members get masked data only: what a branch held then counts as unmasked, unless it is
 * masked or emptied after the recovery.
 */

/** Operations whose requests have a time that is none of the past of a branch. */
const OTHERS = ['applyChange', 'getMetricOfBranches', 'getMetrics'];

interface Request {
  path: string;
  /** Of a GET: its query. */
  query?: string;
  body?: (at: string) => object;
  /** Who gets it: those who may see unmasked data, everybody with the permission, or nobody. */
  gives: 'full' | 'masked' | 'nothing';
}

let n = 0;
const create = (more: object): Pick<Request, 'path' | 'body'> => ({
  path: 'branches',
  body: (at) => {
    n += 1;
    return { branch_name: `past-${n}`, at, ...more };
  },
});
const reset = (branch: string): Pick<Request, 'path' | 'body'> => ({
  path: `branches/${branch}/reset`,
  body: (at) => ({ to: 'time', at, confirm: branch }),
});
const preview = (branch: string): Pick<Request, 'path' | 'query'> => ({
  path: `branches/${branch}/reset/preview`,
  query: 'at',
});
const bisect = (branch: string): Pick<Request, 'path' | 'body'> => ({
  path: 'bisections',
  body: (at) => ({ branch, good: at, bad: new Date().toISOString() }),
});

/** `{masked}` and `{empty}` are IDs of branches. */
const REQUESTS: Record<string, Record<string, Request>> = {
  createBranch: {
    'of main': { ...create({}), gives: 'full' },
    'of main, with the rows of a table': {
      ...create({ data: 'none', keep_tables: ['book'] }),
      gives: 'full',
    },
    'of a branch that is masked now': { ...create({ source_branch_id: '{masked}' }), gives: 'full' },
    'of a branch that is empty now': { ...create({ source_branch_id: '{empty}' }), gives: 'full' },
    'of main, masked': { ...create({ data: 'masked' }), gives: 'masked' },
    'of a masked branch, masked again': {
      ...create({ data: 'masked', source_branch_id: '{masked}' }),
      gives: 'masked',
    },
    'of main, without rows': { ...create({ data: 'none' }), gives: 'masked' },
  },
  resetBranch: {
    main: { ...reset('main'), gives: 'full' },
    'a masked branch': { ...reset('masked'), gives: 'masked' },
    // Its URLs are those of members, and its rows of then are not known to be masked.
    'an emptied branch': { ...reset('empty'), gives: 'nothing' },
  },
  previewReset: {
    main: { ...preview('main'), gives: 'full' },
    'a masked branch': { ...preview('masked'), gives: 'masked' },
    'an emptied branch': { ...preview('empty'), gives: 'full' },
  },
  startBisection: {
    main: { ...bisect('main'), gives: 'full' },
    'a masked branch': { ...bisect('masked'), gives: 'full' },
  },
  probeBisection: {
    'the first': { path: `bisections/${crypto.randomUUID()}/probe`, body: () => ({}), gives: 'full' },
  },
};
const CASES = Object.entries(REQUESTS).flatMap(([id, requests]) =>
  Object.entries(requests).map(([about, request]) => [id, about, request] as const),
);

let gateway: TripsGateway;
let projectId: string;
let path: string;
let ids: Record<string, string>;
let callers: Record<string, Api>;

const keyOf = async (more: Record<string, unknown>) => {
  const wanted = { name: 'key', role: 'operator', scopes: ['branchgate:write'], expires_in_days: 1 };
  const { status, body } = await gateway.api.post<{ key: string }>('/api/v1/api-keys', {
    ...wanted,
    project_id: projectId,
    ...more,
  });
  expect(status, JSON.stringify(body)).toBe(201);
  return new Api(gateway.url, body.key);
};

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  const developer = new Api(gateway.url, await gateway.tokenOf({ gid: 'of-the-past', role: 'operator' }));
  const project = await developer.project('Past');
  projectId = project.id;
  path = `/api/v1/projects/${projectId}`;
  await gateway.moveProject(projectId);
  const { db } = gateway;
  const [row] = await db
    .update(projects)
    .set({ branchLimit: 100 })
    .where(eq(projects.id, projectId))
    .returning();
  // The column has more, which nobody reads here.
  const description = { recoverable_from: '2020-01-01T00:00:00.000000Z' } as never;
  await db
    .update(hosts)
    .set({ description })
    .where(eq(hosts.id, row?.hostId ?? ''));
  const now = `${new Date().toISOString().slice(0, -1)}000Z`;
  const window = { from: null, until: null };
  await gateway.plantAnswer(projectId, 'past.recover', {
    recovered: { size_bytes: 1 },
    window,
    findings: [],
  });
  await gateway.plantAnswer(projectId, 'bisect.start', { ends_at: new Date().toISOString() });
  const range = { good: now, from: now, until: now, probe: now, first_bad: null };
  const step = { branch_id: project.main_branch.id, ...range };
  await gateway.plantAnswer(projectId, 'bisect.step', { step });
  const policy = { rules: [{ table: 'book', column: 'title', with: 'hash' }], unlisted: 'keep' };
  expect((await gateway.api.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
  const { id: masked } = await developer.branch(projectId, 'masked', { data: 'masked' });
  const { id: empty } = await developer.branch(projectId, 'empty', { data: 'none' });
  ids = { masked, empty };
  expect((await gateway.api.call('PATCH', path, { body: { masked_only: true } })).status).toBe(200);
  callers = {
    'an owner': gateway.api,
    'a key with data.full': await keyOf({ permissions: ['data.full'] }),
    'the developer': developer,
    'a key of an admin without it': await keyOf({ role: 'admin' }),
    'a key that reads': await keyOf({ role: 'operator', scopes: ['branchgate:read'] }),
    'a key of a viewer': await keyOf({ role: 'viewer', scopes: ['branchgate:read'] }),
  };
});

test('every request with a time of the past is among these', () => {
  const isTime = (schema: Schema | undefined): boolean => {
    const { format, anyOf = [] } = resolve(DESCRIPTION, schema ?? {});
    return format === 'date-time' || anyOf.some((variant) => isTime(variant));
  };
  const withTime = operationsOf(DESCRIPTION).filter(({ parameters, body }) => {
    const [media] = Object.values(body?.content ?? {});
    const { properties = {} } = resolve(DESCRIPTION, media?.schema ?? {});
    const ofQuery = parameters.filter((parameter) => parameter.in === 'query');
    return [...ofQuery.map(({ schema }) => schema as Schema), ...Object.values(properties)].some(isTime);
  });
  // A probe is at a time that the host chooses.
  expect([...withTime.map(({ id }) => id), 'probeBisection'].toSorted()).toEqual(
    [...Object.keys(REQUESTS), ...OTHERS].toSorted(),
  );
});

const hostCalls = async () => {
  let calls = 0;
  for (const method of ['past.recover', 'bisect.start', 'bisect.step'] as const)
    calls += await gateway.countCalls(projectId, method);
  return calls;
};

async function send(api: Api, { path: below, query, body }: Request) {
  const at = new Date().toISOString();
  // A bisection has a later time too.
  await sleep(2);
  const filled = JSON.stringify(body?.(at) ?? null).replace(
    /\{(\w+)\}/,
    (_, name: string) => ids[name] ?? '',
  );
  const response = await api.call<{ error?: string; message?: string; id?: string; job?: { id: string } }>(
    query ? 'GET' : 'POST',
    `${path}/${below}${query ? `?${query}=${at}` : ''}`,
    body ? { body: JSON.parse(filled) } : {},
  );
  // The next request is not to meet the job of this one.
  await eventually(async () => {
    const { body: listed } = await gateway.api.get<{ jobs: { status: string }[] }>(`${path}/jobs`);
    expect(listed.jobs.filter(({ status }) => status === 'queued' || status === 'running')).toEqual([]);
  });
  return response;
}

describe.each(CASES)('%s: %s', (_, __, request) => {
  test('gives no unmasked data to those who get masked data only', async () => {
    const { gives } = request;
    for (const [who, api] of Object.entries(callers)) {
      const mayChange = !/reads|viewer/.test(who);
      const seesFullData = /owner|data\.full/.test(who);
      const isGiven = mayChange && (gives === 'masked' || (gives === 'full' && seesFullData));
      const before = await hostCalls();
      const { status, body } = await send(api, request);
      const said = `${who}: ${status} ${JSON.stringify(body)}`;
      expect(status < 300, said).toBe(isGiven);
      if (isGiven) continue;
      expect([status, body.error], said).toEqual([403, 'FORBIDDEN']);
      if (mayChange) expect(body.message, said).toContain('masked data only');
      expect(await hostCalls(), said).toBe(before);
    }
  });
});
