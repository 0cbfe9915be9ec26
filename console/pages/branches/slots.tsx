import { Link } from '@tanstack/react-router';
import { bytes } from '../../app/format.ts';
import type { Branch, Project, Usage } from '../../app/resources.ts';
import { Note } from '../../components/feedback.tsx';
import { QuotaMeter } from '../../components/quota-meter.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { TEXT } from '../../strings/common.ts';
import { STORAGE_TEXT } from '../../strings/storage.ts';
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
          <dt>{BRANCHES_TEXT.slots}</dt>
          <dd>{BRANCHES_TEXT.slotsUsed(project.branch_count, project.branch_limit)}</dd>
        </div>
        <div>
          <dt>{BRANCHES_TEXT.storage}</dt>
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
          <dt>{BRANCHES_TEXT.host}</dt>
          <dd>
            <span className={usage?.stale ? 'badge warn' : 'badge good'}>
              {usage?.stale ? BRANCHES_TEXT.hostAway : BRANCHES_TEXT.hostLinked}
            </span>{' '}
            <span className="mono">{project.host}</span>
          </dd>
        </div>
      </dl>
      {isFull && (
        <Note tone="warn">
          <p>{BRANCHES_TEXT.full}</p>
          {first.length > 0 && (
            <p className="small">
              {BRANCHES_TEXT.freesSlot}{' '}
              {first.map(({ id, branch_name }) => (
                <code key={id}>{branch_name} </code>
              ))}
            </p>
          )}
        </Note>
      )}
      {project.storage_state !== 'normal' && (
        <Note tone={project.storage_state === 'warning' ? 'warn' : 'bad'}>
          <p>{STORAGE_TEXT.states[project.storage_state]}</p>
        </Note>
      )}
    </>
  );
}
