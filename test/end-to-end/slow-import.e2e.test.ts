import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { query } from '../support/database.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { startSource } from '../support/source-server.ts';
import { AT_ONCE_BYTES, TcpProxy } from '../support/tcp-proxy.ts';
import { ownerOf } from '../support/tenants.ts';

/** How long a slow source sends. No import was longer than an hour as long as it was one transaction. */
const SLOW = { minutes: 61, bytesPerSecond: 4_096 };

test.runIf(IS_NIGHTLY)(
  'an import of more than an hour ends well',
  { timeout: (SLOW.minutes + 20) * 60_000 },
  async () => {
    const rows = Math.ceil((AT_ONCE_BYTES + SLOW.minutes * 60 * SLOW.bytesPerSecond) / 1_024);
    const source = await startSource();
    const proxy = await TcpProxy.start(source.port, SLOW.bytesPerSecond);
    try {
      await source.run(`set role app; create table slow (id int primary key, filler text not null);
        insert into slow select n, repeat(md5(n::text), 32) from generate_series(1, ${rows}) n; analyze slow`);
      const project = await (await ownerOf('importing')).project('Slowly imported');
      const source_url = source.url({ port: proxy.port });
      const begun = performance.now();
      const minutes = () => (performance.now() - begun) / 60_000;
      const { body } = await (await ownerOf('importing')).post<{ id: string }>(
        `/api/v1/projects/${project.id}/import`,
        { source_url },
      );
      // A token is valid for an hour.
      const jobNow = async () =>
        (await (await ownerOf('importing')).get<{ status: string }>(`/api/v1/jobs/${body.id}`)).body;
      let job = await jobNow();
      while (job.status === 'running' || job.status === 'queued') {
        await sleep(5_000);
        job = await jobNow();
      }
      expect(job).toMatchObject({ status: 'succeeded', error: null });
      expect(minutes()).toBeGreaterThan(SLOW.minutes - 1);
      const api = await ownerOf('importing');
      await api.allow(project.id);
      const { direct_url } = await api.credentials(project.id, 'main');
      expect(await query(direct_url, 'select count(*)::int as rows from slow')).toEqual([{ rows }]);
    } finally {
      proxy.stop();
      await source.stop();
    }
  },
);
