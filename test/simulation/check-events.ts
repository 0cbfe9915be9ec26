import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import type { ActorRun } from './actor-run.ts';
import { read } from './client.ts';
import { changesOf, type ProjectEvent } from './event-follower.ts';
import type { ModelProject } from './model.ts';

/** Long enough for a whole log; the second for a busy machine. */
const REPLAY_SECONDS = [1, 15];
/** A client that was cut off reconnects within this time. */
const CAUGHT_UP_WITHIN_MS = 30_000;
const POLL_EVERY_MS = 100;

type Fields = Record<string, unknown>;

/** The records of a project, as the API shows them. */
interface ShownProject {
  project: Fields;
  branches: Fields[];
  rules: Fields[];
}

/** What the last event of a record has in common with it. */
const FIELDS = {
  'project.changed': ['status'],
  'branch.changed': ['status', 'expires_at', 'labels', 'blocked', 'connections_blocked_until'],
  'network_rule.changed': ['status', 'cidr', 'branch_id'],
  'job.changed': ['status', 'steps', 'attempts', 'error'],
};

/** The first status of each kind of record. */
const FIRST = 'first';

/**
 * The statuses that can follow a status. A status can follow itself if another field has changed. A branch
 * can be lost and found after a fault, and a rule can become pending again.
 */
const NEXT: Record<string, Record<string, readonly string[]>> = {
  'project.changed': {
    [FIRST]: ['creating'],
    creating: ['active', 'deleting', 'failed'],
    active: ['deleting'],
    failed: ['deleting'],
    deleting: ['deleted'],
    deleted: [],
  },
  'branch.changed': {
    [FIRST]: ['creating'],
    creating: ['active', 'failed', 'deleting', 'deleted'],
    active: ['active', 'expired', 'failed', 'deleting', 'deleted'],
    expired: ['active', 'failed', 'deleting', 'deleted'],
    failed: ['active', 'deleting', 'deleted'],
    deleting: ['deleted'],
    // Restored.
    deleted: ['creating'],
  },
  'network_rule.changed': {
    [FIRST]: ['pending'],
    pending: ['applied', 'deleted'],
    applied: ['pending', 'deleted'],
    deleted: [],
  },
  'snapshot.changed': {
    [FIRST]: ['ready'],
    ready: ['ready', 'deleted'],
    deleted: [],
  },
  'job.changed': {
    [FIRST]: ['queued'],
    queued: ['running', 'succeeded', 'failed'],
    running: ['running', 'succeeded', 'failed'],
    succeeded: [],
    failed: [],
  },
};

/** The record that an event is about. */
function subjectOf({ data: { type, project_id, data } }: ProjectEvent): string {
  const ids: Record<string, unknown> = {
    'branch.changed': data.branch_id,
    'network_rule.changed': data.network_rule_id,
    'snapshot.changed': data.snapshot_id,
    'job.changed': data.job_id,
  };
  return String(ids[type] ?? project_id);
}

/** Events of one record: each is a change, and its status follows the one before. */
function problemsOf(type: string, subject: string, events: readonly ProjectEvent[]): string[] {
  let status = FIRST;
  let before = '';
  return events.flatMap(({ data: { data } }) => {
    const now = JSON.stringify(data);
    const next = String(data.status ?? data.state);
    const follows = NEXT[type]?.[status]?.includes(next) ?? true;
    const problem = follows ? (now === before ? `is ${next} twice` : null) : `is ${next} after ${status}`;
    status = next;
    before = now;
    return problem === null ? [] : [`${type} of ${subject} ${problem}`];
  });
}

/**
 * Compares the events of a project with its records and with what its user was promised: every change once
 * and in order, in the log and for a client that was cut off again and again.
 */
export async function checkEvents(run: ActorRun, project: ModelProject, shown: ShownProject): Promise<void> {
  let problems: string[] = [];
  for (const seconds of REPLAY_SECONDS) {
    problems = [];
    await compareEvents(run, project, shown, { seconds, report: (problem) => problems.push(problem) });
    if (problems.length === 0) return;
  }
  for (const problem of problems) run.report(`events of project ${project.id}: ${problem}`);
}

interface Comparing {
  /** For which the log is read. */
  seconds: number;
  report: (problem: string) => void;
}

async function compareEvents(
  run: ActorRun,
  project: ModelProject,
  shown: ShownProject,
  { seconds, report }: Comparing,
): Promise<void> {
  const events = await logOf(run, project.id, seconds);
  if (new Set(events.map(({ data }) => data.id)).size < events.length) report('an event came twice');
  const positions = events.map(({ id }) => Number(id));
  if (positions.some((position, n) => position <= (positions[n - 1] ?? 0))) report('they are out of order');
  const isWhole = positions[0] === 1 && positions.at(-1) === positions.length;
  if (!isWhole) {
    // A user who has moved to another tenant does not see the events of the former one.
    if (!run.model.hasMoved) report(`only ${positions.join(' ')} are there`);
    return;
  }

  const subjects = Map.groupBy(events, (event) => `${event.event} ${subjectOf(event)}`);
  for (const all of subjects.values()) {
    const [first] = all;
    if (first) for (const problem of problemsOf(first.event, subjectOf(first), all)) report(problem);
  }
  const shownJobs = await jobsOf(run, project.id);
  const shownOf: Record<string, readonly Fields[]> = {
    'project.changed': [shown.project],
    'branch.changed': shown.branches,
    'network_rule.changed': shown.rules,
    'job.changed': shownJobs,
  };
  const lastOf = (type: string, id: unknown) => subjects.get(`${type} ${id}`)?.at(-1)?.data.data;
  for (const [type, fields] of Object.entries(FIELDS)) {
    for (const record of shownOf[type] ?? []) {
      const last = lastOf(type, record.id);
      const field = fields.find((name) => !isDeepStrictEqual(last?.[name], record[name]));
      if (field === undefined) continue;
      const [said, is] = [last?.[field], record[field]].map((value) => JSON.stringify(value));
      report(`${type} of ${record.id}: its last ${field} is ${said}, the record says ${is}`);
    }
  }
  for (const [type, promised] of [
    ['branch.changed', project.branches],
    ['network_rule.changed', project.rules],
  ] as const) {
    for (const { id, existence } of promised.values()) {
      const status = lastOf(type, id)?.status;
      if (id && existence === 'gone' && status !== 'deleted') report(`${id} is gone, and ${status} at last`);
    }
  }
  await checkFollower(run, project.id, events, report);
}

async function logOf(
  { model: { api } }: ActorRun,
  projectId: string,
  seconds: number,
): Promise<ProjectEvent[]> {
  const events: ProjectEvent[] = [];
  const wanted = { after: '0', seconds, signal: new AbortController().signal };
  for await (const event of changesOf(api, projectId, wanted)) events.push(event);
  return events;
}

async function jobsOf({ model: { api } }: ActorRun, projectId: string): Promise<Fields[]> {
  return (await read<{ jobs: Fields[] }>(api, `/api/v1/projects/${projectId}/jobs?limit=100`)).jobs;
}

/** The client that was cut off has the same events as the log. */
async function checkFollower(
  run: ActorRun,
  projectId: string,
  events: readonly ProjectEvent[],
  report: (problem: string) => void,
): Promise<void> {
  const follower = run.followerOf(projectId);
  if (!follower) return;
  const deadline = Date.now() + CAUGHT_UP_WITHIN_MS;
  const last = events.at(-1)?.id ?? '0';
  while (follower.lastId !== last && Date.now() < deadline) await sleep(POLL_EVERY_MS);
  const begin = Number(follower.begin ?? last);
  const expected = events.filter(({ id }) => Number(id) > begin).map(({ id }) => id);
  const received = follower.received.map(({ id }) => id);
  if (follower.wasReset) report('a client that was always there was reset');
  if (!isDeepStrictEqual(received, expected))
    report(`a client that was cut off got ${received.join(' ')} instead of ${expected.join(' ')}`);
}
