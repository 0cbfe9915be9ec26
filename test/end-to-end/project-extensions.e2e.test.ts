import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ProjectBody } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { runAt, TwoHosts } from '../support/stack/two-hosts.ts';
import { installStandIn, STAND_IN_VERSION } from '../support/stand-in-postgis.ts';

interface HostBody {
  name: string;
  description: { project_extensions: { name: string; version: string }[] } | null;
}

/** Two hosts that offer PostGIS, or its stand-in. */
describe.runIf(IS_NIGHTLY)('a project with PostGIS', () => {
  let two: TwoHosts;

  /** Gives a host this version of it. */
  async function offer(number: number, version: string) {
    const host = two.stack.hosts[number];
    if (!host) throw new Error('there is no such host');
    const session = await connectOnHost({ socketDir: host.sockets, port: host.ports.direct }, 'branchgate');
    const folder = join(host.stateDir, `postgis-${version}`);
    mkdirSync(folder, { recursive: true });
    const query = (sql: string) => session.query(sql);
    await installStandIn({ query }, folder, { version, before: [join(host.stateDir, 'extensions')] });
    await session.end();
    // It describes itself when it links.
    await host.kill('agent');
    await eventually(async () => {
      const { body } = await two.platform.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
      expect(body.hosts.find(({ name }) => name === host.name)?.description?.project_extensions).toEqual([
        { name: 'postgis', version },
      ]);
    }, 60);
  }

  beforeAll(async () => {
    two = await TwoHosts.start({ PROJECT_EXTENSIONS: 'postgis' });
    await offer(0, STAND_IN_VERSION);
    await offer(1, STAND_IN_VERSION);
  }, 300_000);
  afterAll(() => two?.stack.stop());

  const create = (extensions: unknown) =>
    two.api.post<ProjectBody & { details: { path: string; message: string }[] }>('/api/v1/projects', {
      name: 'Maps',
      extensions,
    });

  test('is refused for what no host offers, with what is offered', async () => {
    expect((await create(['postgis_raster'])).body.details).toEqual([
      {
        path: 'extensions',
        message: 'no database host creates projects with them; offered: postgis',
      },
    ]);
    for (const wrong of [['postgis', 'postgis'], ['postgis"; drop'], 'postgis', [7]])
      expect((await create(wrong)).status).toBe(422);
  });

  test('keeps it in branches, resets, snapshots, and on another host of the same version', {
    timeout: 600_000,
  }, async () => {
    const { api } = two;
    const { status, body: project } = await create(['postgis']);
    expect([status, project.extensions]).toEqual([201, ['postgis']]);
    const path = `/api/v1/projects/${project.id}`;
    expect((await api.patch(path, { extensions: [] })).status).toBe(422);
    await api.allow(project.id);
    const owner = async (branch: string, sql: string) =>
      runAt((await api.credentials(project.id, branch, '?role=owner')).direct_url, sql);
    await owner(
      'main',
      'create table place (id int primary key, at geometry); insert into place select n, st_point(n, n) from generate_series(1, 5) n',
    );
    const has = async (branch: string) =>
      expect(
        await owner(
          branch,
          `select extversion as version, extowner::regrole::text as owner, (select sum((at).x)::int from place) as sum,
             (select count(*)::int from spatial_ref_sys) as systems from pg_extension where extname = 'postgis'`,
        ),
      ).toEqual([{ version: STAND_IN_VERSION, owner: 'branchgate', sum: 15, systems: 401 }]);
    await api.branch(project.id, 'pr-1');
    await has('pr-1');
    await owner('pr-1', 'drop table place');
    expect((await api.post(`${path}/branches/pr-1/reset`, { to: 'parent' })).status).toBeLessThan(300);
    await has('pr-1');

    const former = await two.hostOf(project.id);
    const other = two.otherThan(former);
    await two.begin(project.id, other, { drop_snapshots: true });
    await two.hasEnded(project.id, 'succeeded');
    for (const branch of ['main', 'pr-1']) await has(branch);

    const at = two.hosts.findIndex(({ id }) => id === former);
    const number = two.stack.hosts.findIndex(({ name }) => name === two.hosts[at]?.name);
    await offer(number, '4.0.0');
    await two.begin(project.id, former, { drop_snapshots: true });
    const refused = await two.hasEnded(project.id, 'failed');
    expect(refused.job.error?.message).toContain(
      `postgis in version ${STAND_IN_VERSION}, and the other host has 4.0.0`,
    );
    expect(refused.branches.every(({ state }) => state === 'waiting')).toBe(true);
    await has('main');
  });
});
