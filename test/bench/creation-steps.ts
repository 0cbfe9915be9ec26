import type { Api } from '../support/api.ts';
import type { Job } from '../support/records/jobs.ts';
import { addSample, type Series } from './rounds.ts';

/** A time span in milliseconds since 1970. */
export interface Span {
  name: string;
  from: number;
  to: number;
}

/** The steps of the creations among the newest jobs of a project. @param jobs how many jobs to read */
export async function creationSteps(api: Api, projectId: string, jobs = 1): Promise<Span[]> {
  const { body } = await api.get<{ jobs: Job[] }>(`/api/v1/projects/${projectId}/jobs?limit=${jobs}`);
  return body.jobs
    .filter(({ kind }) => kind.startsWith('branch.create'))
    .flatMap(({ steps }) => steps)
    .map(({ name, started_at, finished_at }) => ({
      name,
      from: Date.parse(started_at ?? ''),
      to: Date.parse(finished_at ?? ''),
    }));
}

/** Adds the duration of each span under its name, in milliseconds. */
export function addDurations(series: Series, spans: readonly Span[]): void {
  for (const { name, from, to } of spans) addSample(series, name, to - from);
}

/** What the gateway does before the first step and after the last one. @param call the request until its response */
export function aroundSteps(spans: readonly Span[], { from, to }: Omit<Span, 'name'>): Span[] {
  return [
    { name: 'before the first step', from, to: Math.min(...spans.map((span) => span.from)) },
    { name: 'after the last step', from: Math.max(...spans.map((span) => span.to)), to },
  ];
}
