import { setTimeout as sleep } from 'node:timers/promises';
import { Api, type ProjectBody } from '../support/api.ts';
import { violations as disagreements } from '../support/records/invariants.ts';
import { takeSnapshot } from '../support/snapshot.ts';
import { ActorRun, type RunContext } from './actor-run.ts';
import { injectFaults } from './inject-faults.ts';
import { ModelActor } from './model.ts';
import { runOperation } from './operations.ts';
import { checkPromises } from './promises.ts';
import type { Operation, Schedule } from './schedule.ts';
import type { Stage } from './stage.ts';
import { Trail } from './trail.ts';

/** Promised from the end of the last fault on. */
const AT_REST_WITHIN_MS = 30_000;
const LOOK_EVERY_MS = 50;

export interface ScheduleReport {
  seed: number;
  /** What must not be; empty when all is well. */
  violations: string[];
  /** What was struck, and when. */
  faults: string[];
  /** Kinds of faults that this machine can't do. */
  leftOut: string[];
  operations: number;
  /** Milliseconds from the end of the last fault until all was at rest; null when that did not come. */
  atRestMs: number | null;
  ms: number;
}

/** Runs one schedule, judges what it led to, and clears it away. */
export async function runSchedule(stage: Stage, schedule: Schedule): Promise<ScheduleReport> {
  const started = Date.now();
  const found: string[] = [];
  const patience = new AbortController();
  const worked = new AbortController();
  const { stack } = stage;
  const runs = await Promise.all(
    schedule.actors.map(async ({ name, tenant, ahead_s: ahead }) => {
      const context: RunContext = {
        signal: patience.signal,
        newApi: async (email, tenant) => new Api(stack.url, await stack.token({ email, tenant, ahead })),
        report: (violation) => found.push(violation),
      };
      const model = new ModelActor(name, tenant, new Api('', null));
      model.api = await context.newApi(model.email, model.tenant);
      return new ActorRun(model, context);
    }),
  );
  const trail = new Trail(stage.sources.d1File, started);
  const begunBefore = stage.databasesBegun;

  const work = Promise.all(
    runs.map((run, place) => carryOutGroups(run, schedule.actors[place]?.groups ?? [])),
  ).finally(() => worked.abort());
  const struck = await injectFaults(stage, schedule.faults, trail, worked.signal);
  const lastFaultOver = Date.now();
  const deadline = lastFaultOver + AT_REST_WITHIN_MS;
  const outOfPatience = setTimeout(() => patience.abort(), AT_REST_WITHIN_MS);
  await work;

  const left = await untilAtRest(stage, trail, deadline);
  const atRestMs = left.length === 0 ? Date.now() - lastFaultOver : null;
  found.push(...left, ...trail.failures());
  const { interruptedClones } = struck;
  const isFull = struck.faults.some((fault) => fault.startsWith('disk_full'));
  const begun = stage.databasesBegun - begunBefore;
  const allowed = trail.creations().size + interruptedClones;
  if (begun > allowed && !isFull) found.push(`double clones: ${begun} were begun, ${allowed} were wanted`);
  if (left.length === 0) {
    for (const run of runs) {
      await run.checkSessions();
      await checkPromises(run, trail.permanentlyFailed(), started);
      trail.check(run);
    }
  }
  clearTimeout(outOfPatience);
  if (found.length === 0) found.push(...(await clearAway(stage, trail, runs)));
  return {
    seed: schedule.seed,
    violations: [...new Set(found)],
    faults: struck.faults,
    leftOut: struck.leftOut,
    operations: schedule.actors.flatMap(({ groups }) => groups.flat()).length,
    atRestMs,
    ms: Date.now() - started,
  };
}

async function carryOutGroups(run: ActorRun, groups: Operation[][]): Promise<void> {
  for (const group of groups) {
    await Promise.all(
      group.map(async (operation) => {
        const deleted = group.some((other) => deletes(other, operation));
        const moved = group.some(({ kind }) => kind === 'move_tenant');
        try {
          await runOperation(run, operation, { deleted, moved });
        } catch (error) {
          // An answer that is not as the API describes it, for one.
          run.report(`${operation.kind}: ${(error as Error).message}`);
        }
      }),
    );
  }
}

/** Whether one deletes what the other is about. */
function deletes(one: Operation, other: Operation): boolean {
  if (one === other) return false;
  if (!('project' in other)) return false;
  if (one.kind === 'delete_project') return one.project === other.project;
  if (one.kind !== 'delete_branch' || one.project !== other.project) return false;
  const subjects = [
    'branch' in other ? other.branch : null,
    other.kind === 'create_branch' ? other.source : null,
  ];
  return subjects.includes(one.branch);
}

/** @returns what records and host do not agree on when the time is up; nothing when they do before */
async function untilAtRest(stage: Stage, trail: Trail, deadline: number): Promise<string[]> {
  for (;;) {
    const left = await disagreementsOf(stage, trail).catch((error: Error) => [
      `the service can't be looked at: ${error.message}`,
    ]);
    if (left.length === 0 || Date.now() > deadline) return left;
    await sleep(LOOK_EVERY_MS);
  }
}

async function disagreementsOf(stage: Stage, trail: Trail): Promise<string[]> {
  const { records, host } = await takeSnapshot(stage.sources);
  const failed = trail.permanentlyFailed();
  const isLeft = ({ id, status }: { id: string; status: string }) => !(status === 'failed' && failed.has(id));
  const projects = records.projects.filter(isLeft);
  const branches = records.branches.filter(isLeft);
  return disagreements({ records: { ...records, projects, branches }, host });
}

/** Deletes every project, so that the next schedule is judged by itself. @returns what is left after that */
async function clearAway(stage: Stage, trail: Trail, runs: ActorRun[]): Promise<string[]> {
  await Promise.all(
    runs.map(async ({ model: { api } }) => {
      const { body } = await api.get<{ projects: ProjectBody[] }>('/api/v1/projects?limit=100');
      await Promise.all(body.projects.map(({ id }) => api.delete(`/api/v1/projects/${id}`)));
    }),
  );
  const left = await untilAtRest(stage, trail, Date.now() + AT_REST_WITHIN_MS);
  return left.map((violation) => `after everything was deleted: ${violation}`);
}
