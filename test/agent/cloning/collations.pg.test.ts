import { afterAll, beforeAll, expect, test } from 'vitest';
import { readOutdatedCollations } from '../../../agent/postgres/collations.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, type Project, startHostWithProject } from '../../support/host/host-project.ts';

let servers: TestHost;
let project: Project;
let main: Branch;
beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject(
    'db_sorted_prod',
    'CREATE TABLE word (text text)',
  ));
});
afterAll(() => servers.stop());

/** As an update of the libraries does. */
const setVersion = (version: string | null) =>
  servers.host.postgres.query('UPDATE pg_database SET datcollversion = $1 WHERE datname = $2', [
    version,
    main.database,
  ]);

test('a database with another version of its collation is refused at once, and named with the remedy', async () => {
  await setVersion('1.0');
  expect(await readOutdatedCollations(servers.host.postgres)).toEqual([main.database]);
  await expect(project.clone(project.plan('db_sorted_prod_br_one'), main.database)).rejects.toMatchObject({
    code: 'COLLATION_OUTDATED',
    message: expect.stringContaining(`ALTER DATABASE "${main.database}" REFRESH COLLATION VERSION`),
  });
  const { stdout } = await servers.tool('doctor');
  expect(stdout).toContain('problem: The libraries of this machine');
  expect(stdout).toContain(`REINDEX DATABASE "${main.database}"`);

  await setVersion(null);
  expect(await readOutdatedCollations(servers.host.postgres)).toEqual([]);
  await project.create('db_sorted_prod_br_two', main.database);
});
