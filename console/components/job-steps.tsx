import { duration, milliseconds, replayed, secondsSince } from '../../shared/format.ts';
import type { Job } from '../data/resources.ts';
import { useNow } from './time.tsx';

const STEP_NAMES = {
  prepare: 'Prepare logins, rules and pooler',
  clone: 'Clone the database',
  publish: 'Publish name and rights',
  prove: 'Prove that a login works',
  create: 'Create the database',
  swap: 'Replace the database',
  take: 'Copy the database',
  drop: 'Drop databases, logins and rules',
  compare: 'Compare the databases',
  close: 'Close main',
  copy: 'Copy the source',
  follow: 'Subscribe to the source',
  cut_over: 'Take over from the source',
  open: 'Open main',
  discard: 'Remove what was replaced',
  recover: 'Recover the database as of the time',
  stop: 'Drop the slot at the source',
} as Record<string, string>;
/** Its steps of the same names do something else. */
const MOVE_STEPS = {
  admit: 'Give the new host access',
  clear: 'Check both hosts',
  build: 'Make empty branches on the new host',
  copy: 'Copy main, which can be written meanwhile',
  branches: 'Copy the other branches, which can only be read from then on',
  compare: 'Compare main',
  fence: 'Close the old host, wait for the last changes, and change the host of the project',
  open: 'Open the new host',
  name: 'Change the DNS record',
  release: 'Remove what is left on the old host',
} as Record<string, string>;
const STEP_STATES = { pending: 'waiting', running: 'running', succeeded: 'done', failed: 'failed' } as const;

type Step = Job['steps'][number];

/** A step is long if it takes longer than a person waits without a message. */
const LONG_SECONDS = 3;

/** How long a step took, or takes by now. */
function Length({ step }: { step: Step }) {
  const now = useNow();
  const { started_at, finished_at, status } = step;
  if (started_at === null) return null;
  if (finished_at !== null)
    return <span className="quiet">{milliseconds(Date.parse(finished_at) - Date.parse(started_at))}</span>;
  const seconds = secondsSince(started_at, now);
  if (status !== 'running' || seconds < LONG_SECONDS) return null;
  // Spoken once a second it would be all that a screen reader says.
  return (
    <span className="quiet" aria-hidden="true">
      {duration(seconds)}
    </span>
  );
}

/** The steps of a job with how long each took. Before the first response there are none. */
export function JobSteps({ job }: { job: Job | null }) {
  const steps = job?.steps ?? [];
  const names = job?.kind === 'project.move' ? MOVE_STEPS : STEP_NAMES;
  if (steps.length === 0) {
    return (
      <ol className="steps" role="status">
        <li data-state="running">Starting</li>
      </ol>
    );
  }
  return (
    <ol className="steps" aria-label="Steps" aria-live="polite">
      {steps.map((step) => (
        <li key={step.name} data-state={step.status}>
          <span className="grow">
            {names[step.name] ?? step.name}
            <span className="visually-hidden">, {STEP_STATES[step.status]}</span>
          </span>
          {step.percent !== undefined && (
            <span className="quiet" aria-hidden="true">
              {step.percent} %{step.replay && <>, {replayed(step.replay)}</>}
            </span>
          )}
          <Length step={step} />
        </li>
      ))}
    </ol>
  );
}
