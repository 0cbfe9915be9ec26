import { BoundedMap } from '../bounded-map.ts';
import type { Env } from '../env.ts';
import { isLinked } from './host-client.ts';

const REMEMBERED_PROJECTS = 10_000;

const hostIds = new BoundedMap<string, string>(REMEMBERED_PROJECTS);

/**
 * Whether the host of a project is linked, found out concurrently with the query that reads the project: this isolate
 * remembers the project's host from the last read. If the guess is wrong, the right host is asked afterwards.
 */
export async function isProjectHostLinked(
  env: Env,
  projectId: string,
  reading: Promise<{ hostId: string }>,
): Promise<boolean> {
  const guess = hostIds.get(projectId);
  const guessed = guess !== undefined && isLinked(env, guess);
  const { hostId } = await reading;
  hostIds.set(projectId, hostId);
  return guess === hostId ? guessed : isLinked(env, hostId);
}
