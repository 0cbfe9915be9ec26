import { setTimeout as sleep } from 'node:timers/promises';
import { Api, type ProjectBody } from '../support/api.ts';
import { violations as disagreements, ofHost } from '../support/records/invariants.ts';
import { takeSnapshot } from '../support/snapshot.ts';
import { ActorRun, type RunContext } from './actor-run.ts';
import { read } from './client.ts';
import { injectFaults } from './inject-faults.ts';
import { GONE_WITHIN_MS, untilLeasesEnd } from './leases.ts';
import { ModelActor } from './model.ts';
import { runOperation } from './operations.ts';
import { checkPromises } from './promises.ts';
import { Users } from './promotions.ts';
import type { Operation, Schedule } from './schedule.ts';
import type { Stage } from './stage.ts';
import { Trail } from './trail.ts';

/** The service converges within this time after the last fault, also on a busy machine. */
const AT_REST_WITHIN_MS = 60_000;
/** A user whose project moves several times is at work for longer. */
const MOVED_WITHIN_MS = 300_000;
/** For a look at each host after its new link. */
const RECONCILED_AFTER_MS = 8_000;
const POLL_EVERY_MS = 50;

export interface ScheduleReport {
  seed: number;
  /** Violations of promises and invariants. */
  violations: string[];
  /** Descriptions of the injected faults. */
  faults: string[];
  /** Kinds of faults that this machine does not support. */
  leftOut: string[];
  operations: number;
  /** Branches that took a spare of a snapshot. */
  sparesTaken: number;
  /** Snapshots of unchanged branches that the host has made for the next ones. */
  standingSnapshots: number;
  /** Moves of projects that have succeeded. */
  moves: number;
  /** Milliseconds from the end of the last fault until the service had converged; null if it did not. */
  atRestMs: number | null;
  ms: number;
}

/** Runs one schedule, checks its effects, and deletes everything it created. */
export async function runSchedule(stage: Stage, schedule: Schedule): Promise<ScheduleReport> {
  const started = Date.now();
  const found: string[] = [];
  const giveUp = new AbortController();
  const worked = new AbortController();
  const { stack } = stage;
  const runs = await Promise.all(
    schedule.actors.map(async ({ name, tenant, ahead_s: ahead }) => {
      const context: RunContext = {
        operator: stage.operator,
        hosts: stage.hosts,
        signal: giveUp.signal,
        newApi: async (email, tenant) => new Api(stack.url, await stack.token({ email, tenant, ahead })),
        report: (violation) => found.push(violation),
      };
      const model = new ModelActor(name, tenant, new Api('', null));
      model.api = await context.newApi(model.email, model.tenant);
      return new ActorRun(model, context);
    }),
  );
  const users = new Users();
  const trail = new Trail(d1FileOf(stage), started);
  const begunBefore = stage.databasesBegun;
  const before = { taken: stage.sparesTaken, standing: stage.standingSnapshots };

  const work = Promise.all(
    runs.map((run, index) => runGroups(run, schedule.actors[index]?.groups ?? [], users)),
  ).finally(() => worked.abort());
  const struck = await injectFaults(stage, schedule.faults, trail, users, worked.signal);
  const lastFaultOver = Date.now();
  const hasSeveral = stage.hosts.length > 1;
  const retryTimer = setTimeout(() => giveUp.abort(), hasSeveral ? MOVED_WITHIN_MS : AT_REST_WITHIN_MS);
  await work;
  const deadline = (hasSeveral ? Date.now() : lastFaultOver) + AT_REST_WITHIN_MS;

  const left = await untilConverged(stage, trail, deadline);
  const atRestMs = left.length === 0 ? Date.now() - lastFaultOver : null;
  found.push(...left, ...trail.failures(struck.hasCrashed));
  const { interruptedClones } = struck;
  const isFull = struck.faults.some((fault) => fault.startsWith('disk_full'));
  const begun = stage.databasesBegun - begunBefore;
  const allowed = trail.creations() + interruptedClones;
  // A move copies again what a fault has interrupted.
  if (begun > allowed && !isFull && !hasSeveral)
    found.push(`double clones: ${begun} were begun, ${allowed} were wanted`);
  if (left.length === 0) {
    const leasesEnd = Math.max(
      ...(await Promise.all(runs.map((run) => reported(run, untilLeasesEnd(run), 0)))),
    );
    if (leasesEnd > 0) found.push(...(await untilConverged(stage, trail, leasesEnd + GONE_WITHIN_MS)));
    for (const run of runs) {
      await run.checkSessions();
      await reported(run, checkPromises(run, trail.permanentlyFailed(), started), undefined);
      trail.check(run);
    }
  }
  clearTimeout(retryTimer);
  const moves = trail.moves().succeeded;
  found.push(...(stage.promotions?.problems() ?? []));
  for (const run of runs) run.stopFollowing();
  if (found.length === 0) found.push(...(await deleteProjects(stage, trail, runs)));
  return {
    seed: schedule.seed,
    violations: [...new Set(found)],
    faults: struck.faults,
    leftOut: struck.leftOut,
    operations: schedule.actors.flatMap(({ groups }) => groups.flat()).length,
    sparesTaken: stage.sparesTaken - before.taken,
    standingSnapshots: stage.standingSnapshots - before.standing,
    moves,
    atRestMs,
    ms: Date.now() - started,
  };
}

async function runGroups(run: ActorRun, groups: Operation[][], users: Users): Promise<void> {
  for (const group of groups) {
    await users.work(() => runGroup(run, group));
  }
}

async function runGroup(run: ActorRun, group: Operation[]): Promise<void> {
  await Promise.all(
    group.map(async (operation) => {
      const deleted = group.some((other) => deletes(other, operation));
      const moved = group.some(({ kind }) => kind === 'move_tenant');
      const moving = group.some((other) => movesProject(other, operation));
      try {
        await runOperation(run, operation, { deleted, moved, moving });
      } catch (error) {
        // For example a response that differs from the API description.
        run.report(`${operation.kind}: ${(error as Error).message}`);
      }
    }),
  );
}

/** Whether one deletes the resource of the other. */
function deletes(one: Operation, other: Operation): boolean {
  if (one === other) return false;
  if (!('project' in other)) return false;
  if (one.kind === 'delete_project') return one.project === other.project;
  if (one.kind !== 'delete_branch' || one.project !== other.project) return false;
  const subjects = ['branch' in other ? other.branch : null, 'source' in other ? other.source : null];
  return subjects.includes(one.branch);
}

/** Whether one moves the project of the other to another host. */
const movesProject = (one: Operation, other: Operation): boolean =>
  one !== other && one.kind === 'move_project' && 'project' in other && one.project === other.project;

/**
 * Polls until records and hosts agree. What a project that is deleted has left on its former host is dropped when that is
 * looked at, which a new link brings forward.
 * @returns the disagreements left at the deadline
 */
async function untilConverged(stage: Stage, trail: Trail, deadline: number): Promise<string[]> {
  let relinked = Date.now();
  for (;;) {
    const left = await disagreementsOf(stage, trail).catch((error: Error) => [
      `the service cannot be inspected: ${error.message}`,
    ]);
    if (left.length === 0 || Date.now() > deadline) return left;
    const isWaiting = Date.now() - relinked < RECONCILED_AFTER_MS || trail.moves().begun === 0;
    if (!isWaiting && !left.some((one) => one.startsWith('open jobs'))) {
      relinked = Date.now();
      stage.link.cut();
    }
    await sleep(POLL_EVERY_MS);
  }
}

async function disagreementsOf(stage: Stage, trail: Trail): Promise<string[]> {
  const failed = trail.permanentlyFailed();
  const isLeft = ({ id, status }: { id: string; status: string }) => !(status === 'failed' && failed.has(id));
  const ofHosts = (await stage.serving()).map(async ({ id, sources }) => {
    const { records, host } = await takeSnapshot(sources);
    const projects = records.projects.filter(isLeft);
    const branches = records.branches.filter(isLeft);
    const picture = { records: { ...records, projects, branches }, host };
    return disagreements(stage.form.hosts > 1 ? ofHost(picture, id) : picture);
  });
  return [...new Set((await Promise.all(ofHosts)).flat())];
}

function d1FileOf({ hosts }: Stage): string {
  const [first] = hosts;
  if (!first) throw new Error('a stage without a host');
  return first.sources.d1File;
}

/** An error of a check is what the schedule has found, and no end of the others. @param otherwise the result then */
const reported = <T>(run: ActorRun, check: Promise<T>, otherwise: T): Promise<T> =>
  check.catch((error) => {
    run.report(String(error));
    return otherwise;
  });

/** Deletes every project, so that the next schedule starts empty. @returns disagreements after that */
async function deleteProjects(stage: Stage, trail: Trail, runs: ActorRun[]): Promise<string[]> {
  await Promise.all(
    runs.map(async ({ model: { api } }) => {
      const { projects } = await read<{ projects: ProjectBody[] }>(api, '/api/v1/projects?limit=100');
      await Promise.all(projects.map(({ id }) => api.delete(`/api/v1/projects/${id}`)));
    }),
  );
  const left = await untilConverged(stage, trail, Date.now() + AT_REST_WITHIN_MS);
  return left.map((violation) => `after everything was deleted: ${violation}`);
}
