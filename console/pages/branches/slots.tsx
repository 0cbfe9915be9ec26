import { Link } from '@tanstack/react-router';
import { bytes } from '../../app/format.ts';
import type { Branch, Project, Usage } from '../../app/resources.ts';
import { Note } from '../../components/feedback.tsx';
import { QuotaMeter } from '../../components/quota-meter.tsx';
import { TEXT } from '../../strings.ts';
import { freeable } from './branch-rows.ts';

const SHOWN = 3;

/** How many branches the project may still have, and how much they may hold. */
export function Slots({
  project,
  branches,
  usage,
}: {
  project: Project;
  branches: readonly Branch[];
  usage: Usage | undefined;
}) {
  const isFull = project.branch_count >= project.branch_limit;
  const first = freeable(branches).slice(0, SHOWN);
  return (
    <>
      <dl className="card padded facts">
        <div>
          <dt>{TEXT.branches.slots}</dt>
          <dd>{TEXT.branches.slotsUsed(project.branch_count, project.branch_limit)}</dd>
        </div>
        <div>
          <dt>{TEXT.branches.storage}</dt>
          <dd>
            <Link to="/projects/$projectId/storage" params={{ projectId: project.id }}>
              {usage
                ? `${bytes(usage.storage_used_bytes)} / ${bytes(usage.storage_limit_bytes)}`
                : TEXT.states.measuring}
            </Link>
            {usage && <QuotaMeter usage={usage} />}
          </dd>
        </div>
        <div>
          <dt>{TEXT.branches.host}</dt>
          <dd>
            <span className={usage?.stale ? 'badge warn' : 'badge good'}>
              {usage?.stale ? TEXT.branches.hostAway : TEXT.branches.hostLinked}
            </span>{' '}
            <span className="mono">{project.host}</span>
          </dd>
        </div>
      </dl>
      {isFull && (
        <Note tone="warn">
          <p>{TEXT.branches.full}</p>
          {first.length > 0 && (
            <p className="small">
              {TEXT.branches.freesSlot}{' '}
              {first.map(({ id, branch_name }) => (
                <code key={id}>{branch_name} </code>
              ))}
            </p>
          )}
        </Note>
      )}
      {project.storage_state !== 'normal' && (
        <Note tone={project.storage_state === 'warning' ? 'warn' : 'bad'}>
          <p>{TEXT.storage.states[project.storage_state]}</p>
        </Note>
      )}
    </>
  );
}
