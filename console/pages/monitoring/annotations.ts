import type { Schemas } from '../../../client/client.ts';
import { blockText } from '../../strings/common.ts';

/** What happened to a branch, as a line in its charts. */
export interface Annotation {
  /** Unix seconds. */
  at: number;
  label: string;
}

interface Happened {
  branch: Schemas['Branch'];
  jobs: readonly Schemas['Job'][];
  checkpoints: readonly Schemas['Checkpoint'][];
  /** Beginnings of blocks in the project, from the audit log. Empty for those who may not read it. */
  blocks: readonly Schemas['AuditEvent'][];
}

/** Blocks by connection attempts end within a minute. The branch shows them as `connections_blocked_until`. */
const BY_ATTEMPTS = 'attempts';

/**
 * The annotations of the range, oldest first. What is newer than the range is drawn at its end, as is a
 * present block whose beginning is unknown.
 * @param start in Unix seconds, as the end
 */
export function annotationsOf(
  { branch, jobs, checkpoints, blocks }: Happened,
  start: number,
  end: number,
): Annotation[] {
  const resets = jobs.filter(
    ({ kind, status, branch_id }) =>
      kind === 'branch.reset' && status === 'succeeded' && branch_id === branch.id,
  );
  const begun = blocks.filter(
    ({ branch_id, metadata }) => branch_id === branch.id && metadata.reason !== BY_ATTEMPTS,
  );
  const events = [
    [branch.created_at, 'Created'],
    ...resets.map(({ updated_at }) => [updated_at, 'Reset'] as const),
    ...checkpoints.map(
      ({ taken_at, number, label }) =>
        [taken_at, label === null ? `Checkpoint ${number}` : `Checkpoint ${number}: ${label}`] as const,
    ),
    ...begun.map(({ created_at, metadata }) => [created_at, blockText(String(metadata.reason))] as const),
  ] as const;
  const annotations = events.map(([at, label]) => ({ at: Math.min(Date.parse(at) / 1000, end), label }));
  if (branch.blocked !== null && begun.length === 0)
    annotations.push({ at: end, label: blockText(branch.blocked.reason) });
  return annotations.filter(({ at }) => at >= start).sort((one, other) => one.at - other.at);
}
