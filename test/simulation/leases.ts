import { setTimeout as sleep } from 'node:timers/promises';
import type { BranchBody } from '../support/api.ts';
import type { ActorRun } from './actor-run.ts';
import { read } from './client.ts';
import type { ModelProject } from './model.ts';

/** The shortest lease. */
export const LEASE_SECONDS = 30;
/** Promised from the end of a lease, or from the return of the last part that was away. */
export const GONE_WITHIN_MS = 10_000;
const POLL_EVERY_MS = 250;

/**
 * Waits until the leased branches of a user are gone, and reports those that end too early or too late. Must
 * be called when the service has converged.
 * @returns when the last lease ended, in Unix milliseconds; 0 if there was none
 */
export async function untilLeasesEnd(run: ActorRun): Promise<number> {
  const projects = [...run.model.projects.values()].filter(({ existence }) => existence === 'there');
  return Math.max(0, ...(await Promise.all(projects.map((project) => untilProjectsLeasesEnd(run, project)))));
}

async function untilProjectsLeasesEnd(run: ActorRun, project: ModelProject): Promise<number> {
  const leased = [...project.branches.values()].filter(({ leasedUntil }) => leasedUntil !== null);
  if (leased.length === 0) return 0;
  const path = `/api/v1/projects/${project.id}/branches`;
  const converged = Date.now();
  let last = 0;
  for (;;) {
    const { branches } = await read<{ branches: BranchBody[] }>(run.model.api, path);
    const now = Date.now();
    const listed = new Map(branches.map((branch) => [branch.id, branch]));
    for (const { id, existence, leasedUntil } of leased) {
      if (existence !== 'there' || leasedUntil === null) continue;
      const end = listed.get(id)?.lease_ends_at;
      if (end === undefined && now < leasedUntil) run.report(`branch ${id} is gone before its lease ends`);
      if (typeof end === 'string' && Date.parse(end) < leasedUntil)
        run.report(`the lease of branch ${id} ends at ${end}, earlier than promised`);
    }
    const ends = branches.flatMap(({ lease_ends_at: end }) =>
      typeof end === 'string' ? [Date.parse(end)] : [],
    );
    last = Math.max(last, converged, ...ends);
    if (ends.length === 0) break;
    if (now > last + GONE_WITHIN_MS) {
      run.report(`${ends.length} branches are there ${now - last} ms after the end of their leases`);
      break;
    }
    await sleep(POLL_EVERY_MS);
  }
  for (const branch of leased) if (branch.existence === 'there') branch.existence = 'gone';
  return last;
}
