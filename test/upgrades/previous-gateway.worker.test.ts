import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { applyMigrations } from '../../dev/gateway/migrations.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { hasRelease, releasedSources } from '../support/released.ts';
import { newSigner, startProvider } from '../support/sign-in/provider.ts';
import { bundle, bundleFile, OBJECTS, SETTINGS, startWorker } from '../support/worker/worker.ts';

/**
 * An upgrade of the gateway, in the order of docs/operating.md: the migrations run while the gateway of the
 * last release serves, then the new gateway takes over its D1 and its Durable Objects.
 */

const MIGRATIONS = 'edge/database/migrations';
const ENDED = ['succeeded', 'failed'];

type Body = Record<string, unknown> & { id: string };

describe.runIf(IS_NIGHTLY && hasRelease())('an upgrade of the gateway', () => {
  const signer = newSigner('key-1');
  let provider: Awaited<ReturnType<typeof startProvider>>;
  let folder: string;
  let worker: ReturnType<typeof startWorker>;
  let url: string;
  let token: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'branchgate-upgrade-'));
    provider = await startProvider(signer);
    const { url: issuer } = provider;
    provider.document = { keys: [signer.entry], issuer, authorization_endpoint: `${issuer}/authorize` };
    token = await signer.token({
      gid: 'user-1',
      email: 'ada@example.com',
      role: 'owner',
      scp: ['branchgate:read', 'branchgate:write'],
      iat: new Date().toISOString(),
      exp: new Date(Date.now() + 3_600_000).toISOString(),
      ctx: { tenant_id: 'acme' },
    });
  });
  afterAll(async () => {
    await worker?.dispose();
    await provider?.stop();
    rmSync(folder, { recursive: true });
  });

  async function start(script: string) {
    const bindings = { ...SETTINGS, IDP_URL: provider.url, DELAY_MS: 0 };
    worker = startWorker(script, { d1Databases: ['DB'], durableObjects: OBJECTS, bindings }, { folder });
    url = (await worker.ready).origin;
  }

  const migrate = async (from: string) =>
    applyMigrations(await worker.getD1Database('DB'), join(from, MIGRATIONS));

  async function call(method: string, path: string, body?: unknown): Promise<{ status: number; body: Body }> {
    const response = await fetch(`${url}/api/v1${path}`, {
      method,
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: (text ? JSON.parse(text) : null) as Body };
  }

  /** Waits until no job of the project is open. */
  async function settled(project: string): Promise<string[]> {
    for (;;) {
      const { body } = await call('GET', `/projects/${project}/jobs`);
      const statuses = (body.jobs as { status: string }[]).map(({ status }) => status);
      if (statuses.every((status) => ENDED.includes(status))) return statuses;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** What both releases can do, and the scripted hosts of both: writes, with the reads that follow. */
  async function use(project: string, suffix: string) {
    const path = `/projects/${project}`;
    const created = await call('POST', `${path}/branches`, { branch_name: `made-${suffix}` });
    expect(created, JSON.stringify(created.body)).toMatchObject({ status: 201, body: { status: 'active' } });
    const branch = `${path}/branches/${created.body.id}`;
    expect((await call('PATCH', path, { name: `Shop ${suffix}` })).status).toBe(200);
    const rule = await call('POST', `${path}/network-rules`, { cidr: `203.0.113.${suffix.length}` });
    expect(rule.status).toBe(201);
    expect((await call('GET', `${branch}/credentials`)).status).toBe(200);
    expect((await call('PATCH', branch, { lifespan: '7d' })).status).toBe(200);
    for (const list of ['branches', 'jobs', 'network-rules', 'usage'])
      expect([list, (await call('GET', `${path}/${list}`)).status]).toEqual([list, 200]);
    expect((await call('GET', '/audit-events')).status).toBe(200);
    expect((await call('DELETE', `${path}/network-rules/${rule.body.id}`)).status).toBe(204);
    const rules = (await call('GET', `${path}/network-rules`)).body.network_rules as Body[];
    expect(rules.map(({ id }) => id)).not.toContain(rule.body.id);
    expect(new Set(await settled(project))).toEqual(new Set(['succeeded']));
    return created.body.id;
  }

  test('the gateway of the last release works with the new schema, and the new one with what it has left', async () => {
    const released = await releasedSources();
    await start(await bundleFile('released', join(released, 'test/support/worker/trips-worker.ts')));
    await migrate(released);
    const d1 = await worker.getD1Database('DB');
    await d1
      .prepare(
        `insert into hosts (id, name, db_host, direct_port, pooled_port, enrolled_at, created_at)
         values ('7d1b0c2e-6a53-4d3c-9d2c-0c1f0f6f1a11', 'a', 'db.example.com', 5432, 6432, 1, 1)`,
      )
      .run();
    const { status, body } = await call('POST', '/projects', { name: 'Shop' });
    expect(status).toBe(201);
    const project = body.id;
    const first = await use(project, 'old');

    await migrate(ROOT);
    const between = await use(project, 'between');

    await worker.dispose();
    await start(await bundle('trips-worker'));
    expect((await call('GET', `/projects/${project}`)).body).toMatchObject({
      name: 'Shop between',
      branch_count: 3,
    });
    const last = await use(project, 'new');
    const { body: listed } = await call('GET', `/projects/${project}/branches`);
    const ids = (listed.branches as Body[]).map(({ id }) => id);
    expect(ids).toEqual(expect.arrayContaining([first, between, last]));
    for (const id of ids.slice(1))
      expect((await call('DELETE', `/projects/${project}/branches/${id}`)).status).toBe(202);
    expect(new Set(await settled(project))).toEqual(new Set(['succeeded']));
  });
});
