import { LIFESPAN_SECONDS, type Lifespan } from '../../shared/branch/lifespan.ts';
import type { BranchBody, ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import type { ActorRun, RunHost } from './actor-run.ts';
import { checkEvents } from './check-events.ts';
import { read } from './client.ts';
import type { Existence, ModelBranch, ModelProject } from './model.ts';
import { withoutHost } from './move-operations.ts';
import { TABLE } from './row-operations.ts';
import { HOME } from './schedule.ts';

const LOGS_IN_WITHIN_S = 20;
const MAX_DELAY_MS = 60_000;

/**
 * Compares everything that one user was promised with what the converged service shows it.
 * @param failed ids of records that may exist without a database
 * @param began earliest time of any request, Unix milliseconds
 */
export async function checkPromises(run: ActorRun, failed: Set<string>, began: number): Promise<void> {
  const { api } = run.model;
  const { projects } = await read<{ projects: ProjectBody[] }>(api, '/api/v1/projects?limit=100');
  const there = new Set(projects.map(({ id }) => id).filter((id) => !failed.has(id)));
  const promised = [...run.model.projects.values()];
  checkExistence(run, 'project', promised, there);
  await Promise.all(
    promised
      .filter(({ id, existence }) => existence === 'there' && there.has(id))
      .map((project) => checkProject(run, project, failed, began)),
  );
}

/** Reports acknowledged resources that are missing, deleted ones that exist, and unexplained ones. */
function checkExistence(
  run: ActorRun,
  what: string,
  promised: { id: string; existence: Existence }[],
  there: Set<string>,
): void {
  const known = new Set<string>();
  for (const { id, existence } of promised) {
    if (id) known.add(id);
    if (existence === 'there' && !there.has(id)) run.report(`${what} ${id} was acknowledged and is lost`);
    if (existence === 'gone' && there.has(id)) run.report(`${what} ${id} was deleted and is still there`);
  }
  const unnamed = [...there].filter((id) => !known.has(id));
  const possible = promised.filter(({ id, existence }) => id === '' && existence === 'unknown').length;
  if (unnamed.length > possible)
    run.report(`${what}: ${unnamed.length} that no response acknowledged, at most ${possible} can be`);
}

async function checkProject(
  run: ActorRun,
  project: ModelProject,
  failed: Set<string>,
  began: number,
): Promise<void> {
  const path = `/api/v1/projects/${project.id}`;
  const { api } = run.model;
  const { branches } = await read<{ branches: BranchBody[] }>(api, `${path}/branches`);
  const { network_rules: rules } = await read<{
    network_rules: { id: string; source: string; status: string }[];
  }>(api, `${path}/network-rules?limit=100`);
  const shown = branches.filter(({ id }) => !failed.has(id));
  const listed = new Map(shown.map((branch) => [branch.id, branch]));
  checkExistence(run, 'branch', [...project.branches.values()], new Set(listed.keys()));
  const manual = rules.filter(({ source }) => source === 'manual');
  checkExistence(run, 'rule', [...project.rules.values()], new Set(manual.map(({ id }) => id)));
  const { snapshots } = await read<{ snapshots: { id: string; kind: string }[] }>(
    api,
    `${path}/snapshots?limit=100`,
  );
  const taken = snapshots.filter(({ kind }) => kind === 'manual').map(({ id }) => id);
  checkExistence(run, 'snapshot', [...project.snapshots.values()], new Set(taken));
  for (const { id, status } of rules)
    if (status !== 'applied') run.report(`rule ${id} is ${status} after convergence`);
  await checkMeasurement(run, project, began);
  await checkEvents(run, project, {
    project: await read<ProjectBody>(api, path),
    branches,
    rules,
  });
  for (const names of project.batches) checkBatch(run, project, names, shown);
  await Promise.all(
    [...project.branches].map(async ([name, branch]) => {
      const found = listed.get(branch.id);
      if (branch.existence !== 'there' || !found) return;
      checkExpiry(run, name, found, began);
      await checkBranch(run, project, name, branch, found);
    }),
  );
}

/** Checks that a batch without a response was made whole or not at all. */
function checkBatch(run: ActorRun, project: ModelProject, names: string[], shown: BranchBody[]): void {
  if (names.some((name) => project.branches.get(name)?.id)) return;
  const made = names.filter((name) => shown.some(({ branch_name }) => branch_name === name));
  if (made.length > 0 && made.length < names.length)
    run.report(`only ${made.join(', ')} of a batch of ${names.join(', ')} were made`);
}

async function checkBranch(
  run: ActorRun,
  project: ModelProject,
  name: string,
  branch: ModelBranch,
  found: BranchBody,
): Promise<void> {
  const what = `branch ${name} (${branch.id})`;
  if (found.status !== 'active') run.report(`${what} is ${found.status}`);
  if (!branch.isProtected.possible.has(Boolean(found.protected)))
    run.report(`${what} is ${found.protected ? '' : 'not '}protected`);
  if (!branch.lifespan.possible.has(String(found.lifespan)))
    run.report(`${what} has the lifespan ${found.lifespan}`);
  const remembered = branch.credentials;
  branch.credentials = null;
  const credentials = await run.credentials(project, branch);
  if (!credentials) {
    run.report(`${what} has no credentials`);
    return;
  }
  if (remembered && withoutHost(remembered.database_url) !== withoutHost(credentials.database_url))
    run.report(`${what} has other passwords than its client received`);
  const canBeRead = project.hasTable && project.rules.get(HOME)?.existence === 'there';
  if (!canBeRead) return;
  const { hosts } = run.context;
  for (const url of branch.retired.flatMap((one) => onHosts(one, hosts)))
    if (await logsIn(url)) run.report(`${what}: a rotated password still works`);
  for (const url of [credentials.database_url, credentials.direct_url]) {
    await checkRows(run, what, branch, url);
    for (const other of onHosts(url, hosts))
      if (other !== url && (await logsIn(other))) run.report(`${what}: two hosts let its clients in`);
  }
}

/** The URL, with the same port of each host. */
function onHosts(text: string, hosts: readonly RunHost[]): string[] {
  const { port } = new URL(text);
  const isPooled = hosts.some(({ ports }) => String(ports.pooled) === port);
  return hosts.map(({ ports }) => text.replace(`:${port}/`, `:${isPooled ? ports.pooled : ports.direct}/`));
}

/** Checks that no measurement is in the future or more than a minute old, whatever the host's clock says. */
async function checkMeasurement(run: ActorRun, { id }: ModelProject, began: number): Promise<void> {
  const usage = await read<{ observed_at: string | null }>(run.model.api, `/api/v1/projects/${id}/usage`);
  const at = usage.observed_at === null ? null : Date.parse(usage.observed_at);
  if (at !== null && (at < began - MAX_DELAY_MS || at > Date.now()))
    run.report(`project ${id} was measured at ${usage.observed_at}`);
}

/** Checks that expiry follows the gateway's clock, whatever the host's clock says. */
function checkExpiry(run: ActorRun, name: string, { lifespan, expires_at }: BranchBody, began: number): void {
  const seconds = LIFESPAN_SECONDS[lifespan as Lifespan];
  const from = seconds === null ? null : Date.parse(String(expires_at)) - seconds * 1000;
  const isRight = from === null ? expires_at === null : from >= began && from <= Date.now();
  if (!isRight) run.report(`branch ${name} of lifespan ${lifespan} ends at ${expires_at}`);
}

const logsIn = (url: string) =>
  query(url, 'select 1').then(
    () => true,
    () => false,
  );

async function checkRows(run: ActorRun, what: string, branch: ModelBranch, url: string): Promise<void> {
  let found: Map<number, string | null>;
  try {
    // The pooler refuses a database for some seconds after one of its server logins has failed.
    const rows = await eventually(
      () => query<{ id: number; title: string | null }>(url, `select id, title from ${TABLE}`),
      LOGS_IN_WITHIN_S,
    );
    found = new Map(rows.map(({ id, title }) => [id, title]));
  } catch (error) {
    run.report(`${what} is unreadable on port ${new URL(url).port}: ${(error as Error).message}`);
    return;
  }
  for (const [row, title] of branch.rows) {
    const value = found.get(row) ?? null;
    if (!title.possible.has(value))
      run.report(`${what}: row ${row} is ${value}, expected ${[...title.possible].join(' or ')}`);
  }
  for (const row of found.keys())
    if (!branch.rows.has(row)) run.report(`${what}: row ${row} was never written`);
}
