import type pg from 'pg';
import { type BranchBody, type Credentials, FROM_LOOPBACK } from '../../support/api.ts';
import { connect } from '../../support/database.ts';
import { IMBALANCE } from '../../support/load.ts';
import type { Job } from '../../support/records/jobs.ts';
import { SLOW_LOGIN_ENDED } from './call-log.ts';
import { type Client, pause } from './client.ts';

/** Branches that a project has at any time, in addition to main. */
const BRANCHES = 2;
const SLOW_LOGIN_MS = 2_000;
/** PostgreSQL sends the second one before it knows whose login it is. */
const ENDED_BY_SERVER =
  /terminating connection due to administrator command|Connection terminated unexpectedly/;
const POLL_EVERY_MS = 250;

/** The response to a creation that takes longer than the gateway waits. */
type JobOfBranch = Job & { branch_id: string };

/** Creates branches of the project's main, checks each, and deletes the oldest, until the end. */
export async function runBrancher(client: Client, projectId: string): Promise<void> {
  const path = `/api/v1/projects/${projectId}/branches`;
  const living: string[] = [];
  for (let number = 1; !client.ending.aborted; number++) {
    const body = { branch_name: `branch-${number}` };
    const created = await client.request<BranchBody | JobOfBranch>({
      method: 'POST',
      path,
      call: 'branch',
      body,
      headers: FROM_LOOPBACK,
    });
    if (!created) {
      await pause(POLL_EVERY_MS, client.ending);
      continue;
    }
    const id = await idOfBranch(client, created);
    if (!id) continue;
    living.push(id);
    await checkContent(client, `${path}/${id}`);
    if (living.length > BRANCHES) await remove(client, `${path}/${living.shift()}`);
  }
}

async function idOfBranch(client: Client, created: BranchBody | JobOfBranch): Promise<string | null> {
  if (!isJob(created)) return created.id;
  return (await jobSucceeds(client, created.id)) ? created.branch_id : null;
}

const isJob = (created: BranchBody | JobOfBranch): created is JobOfBranch => 'kind' in created;

/** A clone of a database in use is consistent: its ledger and balances agree. */
async function checkContent(client: Client, branchPath: string): Promise<void> {
  const credentials = await client.get<Credentials>(`${branchPath}/credentials`);
  if (!credentials) return;
  try {
    const session = await logIn(client, credentials.direct_url);
    const { rows } = await session.query<{ apart: string }>(IMBALANCE);
    await session.end();
    if (rows[0]?.apart !== '0')
      client.log.recordFailure('branch', 'branch out of balance', `by ${rows[0]?.apart}`);
  } catch (error) {
    client.log.recordFailure('branch', 'branch unreadable', String(error));
  }
}

/** Retries a login that was slow enough to be ended while rules change (docs/decisions/access.md). */
async function logIn(client: Client, url: string): Promise<pg.Client> {
  const started = performance.now();
  try {
    return await connect(url);
  } catch (error) {
    const isSlow = performance.now() - started >= SLOW_LOGIN_MS;
    if (!isSlow || !ENDED_BY_SERVER.test(String(error))) throw error;
    client.log.recordFailure('branch', SLOW_LOGIN_ENDED, String(error));
    return logIn(client, url);
  }
}

async function remove(client: Client, path: string): Promise<void> {
  const removed = await client.request<{ job_id: string }>({ method: 'DELETE', path });
  if (removed) await jobSucceeds(client, removed.job_id);
}

/** Waits for the job's end; a failed job is recorded as an error. */
export async function jobSucceeds(client: Client, jobId: string): Promise<boolean> {
  while (!client.ending.aborted) {
    const job = await client.get<Job>(`/api/v1/jobs/${jobId}`);
    if (job?.status === 'failed')
      client.log.recordFailure('branch', `${job.kind} failed`, JSON.stringify(job.error));
    if (job?.status === 'failed' || job?.status === 'succeeded') return job.status === 'succeeded';
    await pause(POLL_EVERY_MS, client.ending);
  }
  return false;
}
