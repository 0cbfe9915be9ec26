import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_BRANCH_LIMIT } from '../../../../shared/project/project-status.ts';
import type { Attack, AttackerProject } from '../attack.ts';

/** A tenant may have so many (`TENANT_PROJECT_LIMIT`). */
const PROJECTS = 10;
/** As many as a project may have besides `main`. */
const BRANCHES = DEFAULT_BRANCH_LIMIT - 1;
/** Enough that a host without reflinks copies files, with two checkpoints. */
const FILLED_MIB = 44;
/** As much as a tenant may have (`TENANT_QUOTA_LIMIT_GIB`), divided among its projects. */
const QUOTA_GIB = 2;
const KIB_OF_ROW = 4;
const LOOK_EVERY_MS = 500;

/**
 * All branches of a tenant are deleted for good at the same time, made again and deleted again, as fast as the limits allow.
 * PostgreSQL makes a checkpoint when a database is copied or dropped, and the agent changes rules and logins.
 */
export const droppedBranches: Attack = {
  row: '3.4',
  login: 'owner',
  member: 'operator',
  projects: PROJECTS,
  branches: BRANCHES,
  quotaGib: QUOTA_GIB,
  setUp: `create table filled (id integer primary key, text text);
    alter table filled alter text set storage external;
    insert into filled select n, repeat(md5(n::text), ${KIB_OF_ROW * 32}) from generate_series(1, ${(FILLED_MIB * 1024) / KIB_OF_ROW}) as n`,
  durationMs: 30_000,
  run: async ({ api, goesOn, count }) => {
    const call = async (method: string, path: string, body?: object) => {
      const response = await fetch(`${api.url}/api/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${api.token}`, 'content-type': 'application/json' },
        ...(body && { body: JSON.stringify(body) }),
        signal: AbortSignal.timeout(60_000),
      });
      const answer = (await response.json().catch(() => ({}))) as Record<string, unknown>;
      if (response.status >= 400) count(`refused: ${method} ${response.status} ${answer.error}`);
      return { status: response.status, answer };
    };
    const drop = async (projectId: string, id: string) => {
      const { status, answer } = await call('DELETE', `/projects/${projectId}/branches/${id}?purge=true`);
      while (status === 202 && goesOn()) {
        const job = await call('GET', `/jobs/${answer.job_id}`);
        if (job.answer.status === 'succeeded') return count('dropped');
        if (job.answer.status === 'failed') return count('not dropped');
        await sleep(LOOK_EVERY_MS);
      }
    };
    const dropAll = ({ id, branches }: AttackerProject) =>
      Promise.all(branches.map((branch) => drop(id, branch)));
    const makeAgain = async ({ id }: AttackerProject, round: number): Promise<AttackerProject> => {
      const batch = { count: BRANCHES, name_prefix: `round-${round}` };
      const { status, answer } = await call('POST', `/projects/${id}/branches/batch`, batch);
      const made = status === 201 ? (answer.branches as { id: string }[]) : [];
      count('made', made.length);
      return { id, branches: made.map((branch) => branch.id) };
    };
    let { projects } = api;
    for (let round = 1; goesOn(); round += 1) {
      await Promise.all(projects.map(dropAll));
      if (goesOn()) projects = await Promise.all(projects.map((project) => makeAgain(project, round)));
    }
  },
  boundsLatency: true,
  revocation: null,
  isByApi: true,
  least: { dropped: 60 },
};
