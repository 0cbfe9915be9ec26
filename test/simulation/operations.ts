import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_LIFESPAN } from '../../shared/branch/lifespan.ts';
import type { ApiResponse, BranchBody, Credentials, ProjectBody } from '../support/api.ts';
import type { ActorRun } from './actor-run.ts';
import { codeOf } from './client.ts';
import {
  branchSnapshot,
  protectBranch,
  protectionOf,
  resetToParent,
  resetToSnapshot,
  restoreBranch,
  takeSnapshot,
} from './history-operations.ts';
import { type Existence, ModelBranch, ModelProject, Promised } from './model.ts';
import { moveProject } from './move-operations.ts';
import {
  type Concurrent,
  findBranch,
  idOf,
  keyed,
  type OperationHandler,
  sameUnderKey,
} from './operation-handler.ts';
import { deleteByApi, makeTable, writeByApi, writeBySql } from './row-operations.ts';
import { HOME, MAIN, type Operation, type OperationKind } from './schedule.ts';
import { Sessions } from './sessions.ts';
import { createBatch, leaseBranch, renewLease } from './short-lived-operations.ts';

/** Deletes a resource and records whether it is gone. @returns the response that confirms it */
async function remove(
  run: ActorRun,
  operation: Operation,
  concurrent: Concurrent,
  resource: { existence: Existence },
  path: string,
  permittedToo: readonly string[] = [],
): Promise<ApiResponse | null> {
  const { api } = run.model;
  resource.existence = 'unknown';
  const outcome = await run.sendOnce(operation, () => api.delete(path));
  const { response, doubtful } = outcome;
  // The attempt before has deleted it, or the deletion is under way.
  const permitted = [...permittedToo, ...(doubtful ? ['NOT_FOUND', 'PROJECT_NOT_ACTIVE'] : [])];
  const [removed = null] = run.responsesWithStatus(operation, [outcome], [202, 204], {
    ...concurrent,
    permitted,
  });
  // A user that has moved meanwhile gets 404 for everything of the former tenant.
  const isGone = removed || (response && codeOf(response) === 'NOT_FOUND' && !concurrent.moved);
  if (isGone) resource.existence = 'gone';
  else if (!doubtful) resource.existence = 'there';
  return removed;
}

const OPERATIONS: { [Kind in OperationKind]: OperationHandler<Kind> } = {
  async create_project(run, operation, concurrent) {
    const { api } = run.model;
    const project = new ModelProject();
    run.model.projects.set(operation.project, project);
    const headers = keyed();
    const request = () => api.post<ProjectBody>('/api/v1/projects', { name: operation.project }, headers);
    const outcomes = await run.send(operation, request);
    const made = await sameUnderKey(
      run,
      operation,
      run.responsesWithStatus(operation, outcomes, 201, concurrent),
      request,
      idOf,
    );
    if (!made) return;
    project.id = made.id;
    project.existence = 'there';
    run.follow(made.id);
    const main = new ModelBranch('forever');
    main.isProtected = new Promised(true);
    main.id = made.main_branch.id;
    main.existence = 'there';
    project.branches.set(MAIN, main);
  },

  async delete_project(run, operation, concurrent) {
    const project = run.model.project(operation.project);
    if (project?.existence !== 'there') return;
    const sessions = await Sessions.open(project.branches.get(MAIN));
    const removed = await remove(run, operation, concurrent, project, `/api/v1/projects/${project.id}`);
    run.expectEnd('delete_project', sessions, removed ? 'at_rest' : 'never');
  },

  make_table: makeTable,

  async create_branch(run, operation, concurrent) {
    const { api } = run.model;
    const found = findBranch(run, { project: operation.project, branch: operation.source });
    if (!found) return;
    await sleep(operation.rest_ms);
    const branch = new ModelBranch(DEFAULT_LIFESPAN);
    branch.parent = found.branch;
    found.owner.branches.set(operation.branch, branch);
    const headers = keyed();
    const path = `/api/v1/projects/${found.owner.id}/branches`;
    const body = { branch_name: operation.branch, source_branch_id: found.branch.id };
    const endClone = found.branch.beginClone();
    const request = () => api.post<BranchBody>(path, body, headers);
    const outcomes = await run.send(operation, request);
    // A fault may hold a transaction open in the source for longer than a clone waits.
    const permitted = ['SOURCE_BUSY'];
    const responses = run.responsesWithStatus(operation, outcomes, 201, { ...concurrent, permitted });
    const made = await sameUnderKey(run, operation, responses, request, idOf);
    branch.rows = endClone();
    if (made) {
      branch.id = made.id;
      branch.existence = found.owner.existence === 'there' ? 'there' : found.owner.existence;
    }
  },

  restore_branch: restoreBranch,
  take_snapshot: takeSnapshot,
  branch_snapshot: branchSnapshot,
  reset_to_parent: resetToParent,
  reset_to_snapshot: resetToSnapshot,
  protect_branch: protectBranch,
  create_batch: createBatch,
  lease_branch: leaseBranch,
  renew_lease: renewLease,

  async delete_branch(run, operation, concurrent) {
    const found = findBranch(run, operation);
    if (!found) return;
    const { owner, branch } = found;
    const sessions = await Sessions.open(branch);
    const { permitted, mustRefuse } = protectionOf(branch, operation.branch);
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}`;
    const removed = await remove(run, operation, concurrent, branch, path, permitted);
    if (removed && mustRefuse)
      run.report(`delete_branch: the protected branch ${operation.branch} was deleted`);
    if (branch.existence !== 'there')
      for (const child of owner.branches.values()) if (child.parent === branch) child.parent = null;
    run.expectEnd('delete_branch', sessions, removed ? 'at_rest' : 'never');
  },

  async add_rule(run, operation, concurrent) {
    const { api } = run.model;
    const project = run.model.project(operation.project);
    if (project?.existence !== 'there') return;
    const { cidr } = operation;
    const before = [...project.rules.values()].filter(
      (rule) => rule.cidr === cidr && rule.existence !== 'gone',
    );
    const rule = { id: '', cidr, existence: 'unknown' as Existence };
    const headers = keyed();
    const path = `/api/v1/projects/${project.id}/network-rules`;
    const request = () => api.post<{ id: string }>(path, { cidr }, headers);
    const outcomes = await run.send(operation, request);
    const permitted = before.length > 0 ? ['RULE_EXISTS'] : [];
    const responses = run.responsesWithStatus(operation, outcomes, 201, { ...concurrent, permitted });
    const made = await sameUnderKey(run, operation, responses, request, idOf);
    const exists = outcomes.some(({ response }) => response && codeOf(response) === 'RULE_EXISTS');
    if (exists) {
      for (const other of before) other.existence = 'there';
      return;
    }
    if (made) Object.assign(rule, { id: made.id, existence: 'there' });
    // A removed rule of this name keeps a separate entry.
    const former = project.rules.get(operation.rule);
    if (former) project.rules.set(`${operation.rule} ${former.id}`, former);
    project.rules.set(operation.rule, rule);
  },

  async remove_rule(run, operation, concurrent) {
    const project = run.model.project(operation.project);
    const rule = project?.rules.get(operation.rule);
    if (project?.existence !== 'there' || rule?.existence !== 'there') return;
    // Other branches have a separate rule for their creator's address.
    const main = operation.rule === HOME ? project.branches.get(MAIN) : undefined;
    const sessions = await Sessions.open(main);
    const path = `/api/v1/projects/${project.id}/network-rules/${rule.id}`;
    const removed = await remove(run, operation, concurrent, rule, path);
    // 202 does not say when both ports apply it, and a rule may be in effect again once the service has
    // converged.
    run.expectEnd('remove_rule', sessions, removed?.status === 204 ? 'now' : 'never');
  },

  async rotate(run, operation, concurrent) {
    const { api } = run.model;
    const found = findBranch(run, operation);
    if (!found) return;
    const { owner, branch } = found;
    const sessions = await Sessions.open(branch);
    const former = branch.credentials;
    branch.credentials = null;
    branch.rotations.most += 1;
    const headers = keyed();
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/credentials/rotate`;
    const outcomes = await run.send(operation, () => api.call<Credentials>('POST', path, { headers }));
    // Every attempt of one request counts, so a persistent client can use up its five per hour.
    const responses = run.responsesWithStatus(operation, outcomes, 200, {
      ...concurrent,
      permitted: ['RATE_LIMITED'],
    });
    // A repetition under the key shows the passwords again.
    for (const { tries } of outcomes) branch.views.most += tries;
    const [first] = responses;
    run.expectEnd('rotate', sessions, first ? 'now' : 'never');
    if (!first) return;
    branch.rotations.least += 1;
    if (new Set(responses.map(({ body }) => body.database_url)).size > 1)
      run.report('rotate: two passwords under one key');
    branch.credentials = first.body;
    if (former) branch.retired.push(former.database_url, former.direct_url);
  },

  async set_lifespan(run, operation, concurrent) {
    const { api } = run.model;
    const found = findBranch(run, operation);
    if (!found) return;
    const { owner, branch } = found;
    const { lifespan } = operation;
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}`;
    branch.lifespan.ask(lifespan);
    const outcome = await run.sendOnce(operation, () => api.patch(path, { lifespan }));
    const done = run.responsesWithStatus(operation, [outcome], 200, concurrent).length > 0;
    branch.lifespan.learn(lifespan, { done, doubtful: outcome.doubtful });
    branch.lifespanChanges.most += outcome.tries;
    if (done) branch.lifespanChanges.least += 1;
  },

  write_by_sql: writeBySql,
  write_by_api: writeByApi,
  delete_by_api: deleteByApi,
  move_project: moveProject,

  async set_durability(run, operation, concurrent) {
    const project = run.model.project(operation.project);
    if (project?.existence !== 'there') return;
    const { durability } = operation;
    const change = () => run.model.api.patch(`/api/v1/projects/${project.id}`, { durability });
    // The former primary has not been copied again yet.
    const permitted = ['NO_STANDBY'];
    run.responsesWithStatus(operation, [await run.sendOnce(operation, change)], 200, {
      ...concurrent,
      permitted,
    });
  },

  async move_tenant(run, operation) {
    const { model, context } = run;
    const tenant = model.tenantNamed(operation.to);
    const api = await context.newApi(model.email, tenant);
    const outcome = await run.sendOnce(operation, () => api.get('/api/v1/projects'));
    if (outcome.response?.status !== 200) {
      run.report(`move_tenant: unexpected response ${outcome.response?.status}`);
      return;
    }
    model.tenant = tenant;
    model.hasMoved = true;
    model.api = api;
  },
};

export const runOperation = (run: ActorRun, operation: Operation, concurrent: Concurrent): Promise<void> =>
  (OPERATIONS[operation.kind] as (...all: [ActorRun, Operation, Concurrent]) => Promise<void>)(
    run,
    operation,
    concurrent,
  );
