import { milliseconds } from '../app/format.ts';
import type { Job } from '../app/resources.ts';
import { JOBS_TEXT } from '../strings/jobs.ts';

type Step = Job['steps'][number];

const lengthOf = ({ started_at, finished_at }: Step): number | null =>
  started_at !== null && finished_at !== null ? Date.parse(finished_at) - Date.parse(started_at) : null;

/** The steps of a job with how long each took. Before the first response there are none. */
export function JobSteps({ job }: { job: Job | null }) {
  const steps = job?.steps ?? [];
  if (steps.length === 0) {
    return (
      <ol className="steps" role="status">
        <li data-state="running">{JOBS_TEXT.starting}</li>
      </ol>
    );
  }
  return (
    <ol className="steps" aria-label={JOBS_TEXT.steps} aria-live="polite">
      {steps.map((step) => {
        const length = lengthOf(step);
        return (
          <li key={step.name} data-state={step.status}>
            <span className="grow">
              {JOBS_TEXT.stepNames[step.name] ?? step.name}
              <span className="visually-hidden">, {JOBS_TEXT.stepStates[step.status]}</span>
            </span>
            {step.percent !== undefined && <span className="quiet">{JOBS_TEXT.percent(step.percent)}</span>}
            {length !== null && <span className="quiet">{milliseconds(length)}</span>}
          </li>
        );
      })}
    </ol>
  );
}
