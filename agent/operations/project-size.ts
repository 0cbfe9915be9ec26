import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { readProjectSizes } from '../measurement/project-sizes.ts';
import { withLocks } from '../postgres/locks.ts';

/** Sizes at most this long, so that a database of very many files does not hold a session of the operations. */
const STATEMENT_WITHIN_MS = 3_000;

export function sizeProject(
  host: Host,
  { project_id }: Params<'project.size'>,
): Promise<MethodResult<'project.size'>> {
  return withLocks(host.sessions, [], async (session) => {
    await session.query(`SET statement_timeout = ${STATEMENT_WITHIN_MS}`);
    const [sizes = { project_id, sizes: {} }] = await readProjectSizes(session, [project_id]);
    await session.query('RESET statement_timeout');
    return sizes;
  });
}
