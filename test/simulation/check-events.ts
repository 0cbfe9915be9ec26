import type { EventBody } from '../../edge/events/event-types.ts';
import type { BranchBody } from '../support/api.ts';
import { readEvent } from '../support/listen.ts';
import type { ActorRun } from './actor-run.ts';

/** Long enough for a whole log. */
const REPLAY_SECONDS = 1;

interface Shown {
  branches: BranchBody[];
  rules: { id: string; status: string }[];
}

/** Compares the events of a project, which have to explain its records: every change once and in order. */
export async function checkEvents(run: ActorRun, projectId: string, shown: Shown): Promise<void> {
  const response = await run.model.api.get<string>(
    `/api/v1/projects/${projectId}/events?seconds=${REPLAY_SECONDS}`,
    { headers: { 'Last-Event-ID': '0' } },
  );
  const blocks = (response.body ?? '').split('\n\n');
  const events = blocks.flatMap((block) => readEvent<EventBody>(block) ?? []);
  const report = (problem: string) => run.report(`events of project ${projectId}: ${problem}`);
  if (new Set(events.map(({ data }) => data.id)).size < events.length) report('an event came twice');
  const positions = events.map(({ id }) => Number(id));
  if (positions.some((position, n) => position <= (positions[n - 1] ?? 0))) report('they are out of order');
  // A user who has moved to another tenant does not see the events of the former one.
  if (positions.some((position, n) => position !== n + 1)) return;
  const last = new Map<unknown, unknown>();
  for (const { data } of events) {
    const { network_rule_id, branch_id, status } = data.data;
    if (data.type === 'branch.changed') last.set(branch_id, status);
    if (data.type === 'network_rule.changed') last.set(network_rule_id, status);
  }
  for (const { id, status } of [...shown.branches, ...shown.rules])
    if (last.get(id) !== status) report(`${id} is ${status}, its last event said ${last.get(id)}`);
}
