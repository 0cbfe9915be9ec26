import type pg from 'pg';
import { beforeAll, expect, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import {
  attempt,
  attempts,
  connectFrom,
  HERE,
  OUTSIDE,
  type Target,
  targetOfUrl,
  tried,
} from '../support/host/attempts.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  api = await ownerOf('connection-limits');
  project = await api.project('Limits');
  await api.branch(project.id, 'other');
});

async function targets(branch: string, of = project): Promise<[direct: Target, pooled: Target]> {
  const { direct_url, database_url } = await api.credentials(of.id, branch);
  return [targetOfUrl(direct_url), targetOfUrl(database_url)];
}

test('a branch is blocked after 50 attempts a minute, over both ports, and attempts that no rule admits do not count', async () => {
  await api.branch(project.id, 'guessed');
  const [direct, pooled] = await targets('guessed');
  const others = await targets('other');
  const guess = { ...pooled, password: 'a guess' };
  expect(tried(await attempts(20, pooled, { address: OUTSIDE }))).toBe(0);

  const outcomes = [
    ...(await attempts(10, direct)),
    ...(await attempts(10, { ...direct, password: 'a guess' })),
    ...(await attempts(10, pooled)),
    ...(await attempts(19, guess)),
  ];
  expect(tried(outcomes)).toBe(49);
  // `npm run bench -- connection-limits` measures how many more pass until both servers refuse them.
  await eventually(async () => expect(await attempt(guess)).toBe('refused'));
  for (const target of [direct, pooled])
    await eventually(async () => expect(await attempt(target)).toBe('refused'));
  for (const target of others) expect(await attempt(target)).toBe('in');

  // The record says it, and a higher limit opens the branch before the minute is over.
  const path = `/api/v1/projects/${project.id}/branches/guessed`;
  await eventually(async () => {
    const { body } = await api.get(path);
    expect(body.closed_to).toEqual([
      {
        network: null,
        until: expect.any(String),
        attempts: 50,
        message: expect.stringMatching(
          /^Closed to every network until [\d:]{8} UTC, after 50 connection attempts in a minute\./,
        ),
      },
    ]);
  });
  const raised = await api.patch(path, { connection_attempts_per_minute: 'max' });
  expect(raised.body.connection_attempts_per_minute).toBe(2000);
  for (const target of [direct, pooled])
    await eventually(async () => expect(await attempt(target)).toBe('in'));
});

test('a branch has the limit of its project, unless it has its own, also with a lease', async () => {
  const path = `/api/v1/projects/${project.id}`;
  const limitOf = async (name: string) =>
    (await api.get(`${path}/branches/${name}`)).body.connection_attempts_per_minute;
  const set = (to: string, limit: number | null) => api.patch(to, { connection_attempts_per_minute: limit });
  await api.branch(project.id, 'own', { connection_attempts_per_minute: 300 });
  await api.branch(project.id, 'leased', { lease_seconds: 60 });
  expect(await limitOf('other')).toBe(50);
  expect((await set(path, 120)).body.connection_attempts_per_minute).toBe(120);
  expect([await limitOf('main'), await limitOf('other')]).toEqual([120, 120]);
  expect([await limitOf('own'), await limitOf('leased')]).toEqual([300, 120]);
  expect((await set(`${path}/branches/own`, null)).body.connection_attempts_per_minute).toBe(120);
  expect(await set(`${path}/branches/own`, 2001)).toMatchObject({
    status: 422,
    body: { error: 'CONNECTION_ATTEMPTS_ABOVE_MAX', limit: 2000 },
  });
});

/** Sessions of a runner and its sixty workers, which all begin at once, as in BranchBench's simulation (arXiv 2604.17180). */
async function simulate(of: ProjectBody, branch: string) {
  const [direct] = await targets(branch, of);
  const sessions = await Promise.allSettled(Array.from({ length: 61 }, () => connectFrom(HERE, direct)));
  const clients = sessions.flatMap((session) => (session.status === 'fulfilled' ? [session.value] : []));
  try {
    const work = (client: pg.Client, n: number) =>
      client.query('insert into worked values ($1) on conflict (n) do nothing', [n]);
    await clients[0]?.query('create table worked (n int primary key)');
    await Promise.all(clients.map(work));
    const refusals = sessions.flatMap((session) =>
      session.status === 'rejected' ? [String(session.reason)] : [],
    );
    return { worked: clients.length, refusals };
  } finally {
    await Promise.all(clients.map((client) => client.end()));
  }
}

test('of sixty workers that begin at once, each that is refused learns the limit', async () => {
  const crowded = await api.project('Crowded');
  await api.branch(crowded.id, 'of-one', { connection_attempts_per_minute: 'max' });
  const unlimited = await simulate(crowded, 'of-one');
  // `BRANCH_CONNECTIONS` is 60, and sessions of the host itself are among them while a branch is new.
  expect(unlimited.worked).toBeGreaterThanOrEqual(55);
  expect(unlimited.refusals.length).toBeGreaterThan(0);
  for (const refusal of unlimited.refusals) expect(refusal).toMatch(/too many connections for database/);

  await api.branch(crowded.id, 'of-stock');
  const stock = await simulate(crowded, 'of-stock');
  expect(stock.worked).toBeGreaterThanOrEqual(50 - 1);
  for (const refusal of stock.refusals)
    expect(refusal).toMatch(/too many connections for database|no pg_hba\.conf entry/);
  // PostgreSQL's text names no limit where a rule refuses, so the record does.
  const limit = /50 connection attempts in a minute/;
  const path = `/api/v1/projects/${crowded.id}/branches/of-stock`;
  await eventually(async () =>
    expect((await api.get(path)).body.closed_to).toMatchObject([{ message: expect.stringMatching(limit) }]),
  );
});
