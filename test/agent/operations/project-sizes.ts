import { expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { TestHost } from '../../support/host/host.ts';
import { connect, makeProject } from '../../support/host/host-project.ts';

const LOADED_MB = 200;

/** `project.size` sizes again only what has changed, and misses no change. */
export function describeProjectSizes(host: () => TestHost): void {
  test(`${LOADED_MB} MB that an open session has just loaded are counted`, async () => {
    const { project, main } = await makeProject(host(), 'db_sized_prod', 'create table filler (text text)');
    const sizeOf = async () => {
      const { sizes } = await runOperation(host().host, 'project.size', { project_id: project.id });
      return sizes[main.branch_id] ?? 0;
    };
    const before = await sizeOf();
    const client = await connect(host().host, 'direct', main, 'owner');
    try {
      // The session counts its changes once a second at most, so the second statement is not counted yet.
      await client.query('insert into filler values (1)');
      await client.query(
        `insert into filler select repeat(md5(n::text), 30) from generate_series(1, ${LOADED_MB * 1000}) as n`,
      );
      expect((await sizeOf()) - before).toBeGreaterThan(LOADED_MB * 1e6 * 0.9);
    } finally {
      await client.end();
    }
  });
}
