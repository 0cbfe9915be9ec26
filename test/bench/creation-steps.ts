import type { Api } from '../support/api.ts';
import type { Job } from '../support/records/jobs.ts';
import { addSample, type Series } from './rounds.ts';

/** A time span in milliseconds since 1970. */
export interface Span {
  name: string;
  from: number;
  to: number;
}

/** A request, or what is done within one. */
type Interval = Omit<Span, 'name'>;

/** The steps of each creation among the newest jobs of a project. @param jobs how many jobs to read */
async function creations(api: Api, projectId: string, jobs: number): Promise<Span[][]> {
  const { body } = await api.get<{ jobs: Job[] }>(`/api/v1/projects/${projectId}/jobs?limit=${jobs}`);
  return body.jobs
    .filter(({ kind }) => kind.startsWith('branch.create'))
    .map(({ steps }) =>
      steps.map(({ name, started_at, finished_at }) => ({
        name,
        from: Date.parse(started_at ?? ''),
        to: Date.parse(finished_at ?? ''),
      })),
    );
}

/** As `creations`, the steps of all of them. */
export const creationSteps = async (api: Api, projectId: string, jobs = 1): Promise<Span[]> =>
  (await creations(api, projectId, jobs)).flat();

/** The parts of the newest creations of a project: their steps, and what the gateway does around them. @param calls the requests */
export async function creationParts(
  api: Api,
  projectId: string,
  calls: readonly Interval[],
): Promise<Span[]> {
  // A branch that is dropped by now has a second job.
  const made = await creations(api, projectId, 2 * calls.length);
  return made.flatMap((steps) => {
    const begun = Math.min(...steps.map(({ from }) => from));
    const call = calls.find(({ from, to }) => from <= begun && begun <= to);
    return call ? [...steps, ...aroundSteps(steps, call)] : [];
  });
}

/** Adds the duration of each span under its name, in milliseconds. */
export function addDurations(series: Series, spans: readonly Span[]): void {
  for (const { name, from, to } of spans) addSample(series, name, to - from);
}

/** What the gateway does before the first step and after the last one. @param call the request until its response */
function aroundSteps(spans: readonly Span[], { from, to }: Interval): Span[] {
  return [
    { name: 'before the first step', from, to: Math.min(...spans.map((span) => span.from)) },
    { name: 'after the last step', from: Math.max(...spans.map((span) => span.to)), to },
  ];
}
