import { randomUUID } from 'node:crypto';
import { DEFAULT_LIFESPAN } from '../../shared/branch/lifespan.ts';
import {
  type ApiResponse,
  type BranchBody,
  type Credentials,
  FROM_LOOPBACK,
  type ProjectBody,
} from '../support/api.ts';
import type { ActorRun } from './actor-run.ts';
import { codeOf } from './client.ts';
import { type Existence, ModelBranch, ModelProject } from './model.ts';
import { type Concurrent, findBranch, type OperationHandler } from './operation-handler.ts';
import { deleteByApi, makeTable, writeByApi, writeBySql } from './row-operations.ts';
import { HOME, MAIN, type Operation, type OperationKind } from './schedule.ts';
import { Sessions } from './sessions.ts';

const keyed = () => ({ ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() });

/** One thing under one key: every answer names the same id, and so does one more request. */
async function sameAgain<B extends { id: string }>(
  run: ActorRun,
  operation: Operation,
  answers: ApiResponse<B>[],
  request: () => Promise<ApiResponse<B>>,
): Promise<B | null> {
  const [first] = answers;
  if (!first) return null;
  const ids = new Set(answers.map(({ body }) => body.id));
  if (operation.copies > 1 && operation.persists) {
    const { response } = await run.sendOnce(operation, request);
    if (response && response.status < 300) ids.add(response.body.id);
  }
  if (ids.size > 1) run.report(`${operation.kind}: ${ids.size} things under one key`);
  return first.body;
}

/** Removes a thing, and notes whether it is gone. @returns the answer that says so */
async function remove(
  run: ActorRun,
  operation: Operation,
  beside: Concurrent,
  thing: { existence: Existence },
  path: string,
): Promise<ApiResponse | null> {
  const { api } = run.model;
  thing.existence = 'unknown';
  const outcome = await run.sendOnce(operation, () => api.delete(path));
  const { response, doubtful } = outcome;
  const lawful = doubtful ? ['NOT_FOUND'] : [];
  const [removed = null] = run.responsesWithStatus(operation, [outcome], [202, 204], { ...beside, lawful });
  // To a user that has moved meanwhile nothing of the former tenant is there.
  const isGone = removed || (response && codeOf(response) === 'NOT_FOUND' && !beside.moved);
  if (isGone) thing.existence = 'gone';
  else if (!doubtful) thing.existence = 'there';
  return removed;
}

const OPERATIONS: { [Kind in OperationKind]: OperationHandler<Kind> } = {
  async create_project(run, operation, beside) {
    const { api } = run.model;
    const project = new ModelProject();
    run.model.projects.set(operation.project, project);
    const headers = keyed();
    const request = () => api.post<ProjectBody>('/api/v1/projects', { name: operation.project }, headers);
    const outcomes = await run.send(operation, request);
    const made = await sameAgain(
      run,
      operation,
      run.responsesWithStatus(operation, outcomes, 201, beside),
      request,
    );
    if (!made) return;
    project.id = made.id;
    project.existence = 'there';
    const main = new ModelBranch('forever');
    main.id = made.main_branch.id;
    main.existence = 'there';
    project.branches.set(MAIN, main);
  },

  async delete_project(run, operation, beside) {
    const project = run.model.project(operation.project);
    if (project?.existence !== 'there') return;
    const sessions = await Sessions.open(project.branches.get(MAIN));
    const removed = await remove(run, operation, beside, project, `/api/v1/projects/${project.id}`);
    run.expectEnd('delete_project', sessions, removed ? 'at_rest' : 'never');
  },

  make_table: makeTable,

  async create_branch(run, operation, beside) {
    const { api } = run.model;
    const place = findBranch(run, { project: operation.project, branch: operation.source });
    if (!place) return;
    const branch = new ModelBranch(DEFAULT_LIFESPAN);
    place.owner.branches.set(operation.branch, branch);
    const headers = keyed();
    const path = `/api/v1/projects/${place.owner.id}/branches`;
    const body = { branch_name: operation.branch, source_branch_id: place.branch.id };
    const endClone = place.branch.beginClone();
    const request = () => api.post<BranchBody>(path, body, headers);
    const outcomes = await run.send(operation, request);
    // A source that a fault holds in a transaction is busy for longer than a clone waits.
    const lawful = ['SOURCE_BUSY'];
    const answers = run.responsesWithStatus(operation, outcomes, 201, { ...beside, lawful });
    const made = await sameAgain(run, operation, answers, request);
    branch.rows = endClone();
    if (made) {
      branch.id = made.id;
      branch.existence = place.owner.existence === 'there' ? 'there' : place.owner.existence;
    }
  },

  async delete_branch(run, operation, beside) {
    const place = findBranch(run, operation);
    if (!place) return;
    const { owner, branch } = place;
    const sessions = await Sessions.open(branch);
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}`;
    const removed = await remove(run, operation, beside, branch, path);
    run.expectEnd('delete_branch', sessions, removed ? 'at_rest' : 'never');
  },

  async add_rule(run, operation, beside) {
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
    const lawful = before.length > 0 ? ['RULE_EXISTS'] : [];
    const answers = run.responsesWithStatus(operation, outcomes, 201, { ...beside, lawful });
    const made = await sameAgain(run, operation, answers, request);
    const exists = outcomes.some(({ response }) => response && codeOf(response) === 'RULE_EXISTS');
    if (exists) {
      for (const other of before) other.existence = 'there';
      return;
    }
    if (made) Object.assign(rule, { id: made.id, existence: 'there' });
    // What was removed under this name keeps its own entry.
    const former = project.rules.get(operation.rule);
    if (former) project.rules.set(`${operation.rule} ${former.id}`, former);
    project.rules.set(operation.rule, rule);
  },

  async remove_rule(run, operation, beside) {
    const project = run.model.project(operation.project);
    const rule = project?.rules.get(operation.rule);
    if (project?.existence !== 'there' || rule?.existence !== 'there') return;
    // Other branches let their creator in by a rule of their own.
    const main = operation.rule === HOME ? project.branches.get(MAIN) : undefined;
    const sessions = await Sessions.open(main);
    const path = `/api/v1/projects/${project.id}/network-rules/${rule.id}`;
    const removed = await remove(run, operation, beside, rule, path);
    // 202 does not say when both ports obey, and by the time all is at rest the rule may be in force again.
    run.expectEnd('remove_rule', sessions, removed?.status === 204 ? 'now' : 'never');
  },

  async rotate(run, operation, beside) {
    const { api } = run.model;
    const place = findBranch(run, operation);
    if (!place) return;
    const { owner, branch } = place;
    const sessions = await Sessions.open(branch);
    const former = branch.credentials;
    branch.credentials = null;
    const headers = keyed();
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/credentials/rotate`;
    const outcomes = await run.send(operation, () => api.call<Credentials>('POST', path, { headers }));
    // Every try of one request is charged, so that a stubborn client uses its five an hour up.
    const answers = run.responsesWithStatus(operation, outcomes, 200, {
      ...beside,
      lawful: ['RATE_LIMITED'],
    });
    branch.rotations.most += 1;
    const [first] = answers;
    run.expectEnd('rotate', sessions, first ? 'now' : 'never');
    if (!first) return;
    branch.rotations.least += 1;
    if (new Set(answers.map(({ body }) => body.database_url)).size > 1)
      run.report('rotate: two passwords under one key');
    branch.credentials = first.body;
    if (former) branch.retired.push(former.database_url, former.direct_url);
  },

  async set_lifespan(run, operation, beside) {
    const { api } = run.model;
    const place = findBranch(run, operation);
    if (!place) return;
    const { owner, branch } = place;
    const { lifespan } = operation;
    const path = `/api/v1/projects/${owner.id}/branches/${branch.id}`;
    branch.lifespan.ask(lifespan);
    const outcome = await run.sendOnce(operation, () => api.patch(path, { lifespan }));
    const done = run.responsesWithStatus(operation, [outcome], 200, beside).length > 0;
    branch.lifespan.learn(lifespan, { done, doubtful: outcome.doubtful });
    branch.lifespanChanges.most += outcome.tries;
    if (done) branch.lifespanChanges.least += 1;
  },

  write_by_sql: writeBySql,
  write_by_api: writeByApi,
  delete_by_api: deleteByApi,

  async move_tenant(run, operation) {
    const { model, context } = run;
    const tenant = model.tenantNamed(operation.to);
    const api = await context.newApi(model.email, tenant);
    const outcome = await run.sendOnce(operation, () => api.get('/api/v1/projects'));
    if (outcome.response?.status !== 200) {
      run.report(`move_tenant: unexpected answer ${outcome.response?.status}`);
      return;
    }
    model.tenant = tenant;
    model.api = api;
  },
};

export const runOperation = (run: ActorRun, operation: Operation, beside: Concurrent): Promise<void> =>
  (OPERATIONS[operation.kind] as (...all: [ActorRun, Operation, Concurrent]) => Promise<void>)(
    run,
    operation,
    beside,
  );
