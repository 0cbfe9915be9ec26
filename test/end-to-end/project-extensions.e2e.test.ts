import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ProjectBody } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { openBrowser, visit } from '../support/console/browser.ts';
import { signInOnPage, siteOf } from '../support/console/person.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { newOwner } from '../support/sign-in/people.ts';
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
    two = await TwoHosts.start({
      PROJECT_EXTENSIONS: 'postgis',
      RECOVERY_WINDOW_HOURS: '24',
      MIN_FREE_DISK_MB: '16',
    });
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

  test('keeps it in branches, resets, a recovery, moves and a drain to a host of the same version', {
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

    await eventually(async () => {
      const { body } = await api.get<{ recoverable: unknown }>(path);
      expect(body.recoverable).not.toBeNull();
    }, 120);
    const [moment] = await owner(
      'main',
      `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
    );
    await owner('main', 'delete from place');
    const recovered = await api.post(`${path}/branches`, { branch_name: 'before', ...moment });
    expect(recovered.status, JSON.stringify(recovered.body)).toBe(201);
    await has('before');
    const back = await api.post(`${path}/branches/main/reset`, { to: 'time', ...moment, confirm: 'main' });
    expect(back.status, JSON.stringify(back.body)).toBeLessThan(300);
    await has('main');
    expect((await api.delete(`${path}/branches/before`)).status).toBe(202);
    await eventually(async () => expect((await api.get(`${path}/branches/before`)).status).toBe(404));

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

    const drain = `/platform/v1/hosts/${other}/drain`;
    const drainUntil = async (wanted: object) => {
      const begun = await two.platform.post(drain, { drop_snapshots: true });
      expect(begun.status, JSON.stringify(begun.body)).toBe(202);
      await eventually(
        async () =>
          expect((await two.platform.get(drain)).body).toMatchObject({
            ...wanted,
            moving: null,
            waiting: [],
          }),
        300,
      );
    };
    const stays = { project_id: project.id, message: expect.stringContaining('the other host has 4.0.0') };
    await drainUntil({ remaining: 1, failed: [stays] });
    await has('main');
    await offer(number, STAND_IN_VERSION);
    await drainUntil({ remaining: 0, failed: [] });
    expect(await two.hostOf(project.id)).toBe(former);
    for (const branch of ['main', 'pr-1']) await has(branch);
  });

  test('is asked for by the command line, and on the page for a new project', async () => {
    const { url } = two.stack;
    const cli = await CommandLine.open({ BRANCHGATE_URL: url, BRANCHGATE_TOKEN: await two.stack.token() });
    const made = await cli.run('project', 'create', 'atlas', '--extension', 'postgis', '--json');
    expect(made.code, made.stderr).toBe(0);
    expect(JSON.parse(made.stdout)).toMatchObject({ name: 'atlas', extensions: ['postgis'] });
    const words = ['--extension', 'postgis', '--extension', 'postgis_raster'];
    const refused = await cli.run('project', 'create', 'other', ...words);
    expect([refused.code, refused.stderr]).toEqual([2, expect.stringContaining('offered: postgis')]);

    const person = await newOwner(siteOf(two.stack), 'maps@example.org');
    const browser = await openBrowser();
    try {
      const { page } = await visit(browser, url, { colorScheme: 'light' });
      await signInOnPage(page, person.email);
      await page.getByRole('link', { name: 'New project' }).first().click();
      await page.getByLabel('Name', { exact: true }).fill('atlas');
      const extensions = page.getByLabel('Extensions (optional)');
      await extensions.fill('postgis, postgis_raster');
      await page.getByText(`branchgate project create atlas ${words.join(' ')}`).waitFor();
      await page.getByRole('button', { name: 'New project' }).click();
      const problem = 'no database host creates projects with them; offered: postgis';
      await page.getByText(problem, { exact: true }).waitFor();
      await extensions.fill('postgis');
      await page.getByRole('button', { name: 'New project' }).click();
      await page.waitForURL(/\/projects\/[0-9a-f-]{36}/);
    } finally {
      await browser.close();
    }
    const { body } = await person.api.get<{ projects: ProjectBody[] }>('/api/v1/projects');
    expect(body.projects.map(({ extensions }) => extensions)).toEqual([['postgis']]);
  });
});
