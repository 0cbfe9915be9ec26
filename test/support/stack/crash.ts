import { readFileSync } from 'node:fs';
import { sendSignal } from '../../../dev/stack/processes.ts';
import { HOST_PARTS, type HostPart, type PartName } from '../../../dev/stack/programs.ts';
import type { Stack } from './stack.ts';

/** A part of the stack. `postgres` is every process of the server; `postmaster` is its first process. */
export type Victim = PartName | 'postmaster';

export const partOf = (victim: Victim): PartName => (victim === 'postmaster' ? 'postgres' : victim);

/** Whether each host has such a part. */
const isOfHost = (part: PartName): part is HostPart => HOST_PARTS.some((name) => name === part);

/** A part of the stack, for those of a host of that host. @param host its place in `stack.hosts` */
export function placeOf(stack: Stack, part: PartName, host = 0) {
  const of = stack.hosts[host];
  if (!isOfHost(part) || !of)
    return {
      pid: stack.state.pids[part],
      kill: () => stack.kill(part),
      start: () => stack.start(part),
    };
  return { pid: of.pid(part), kill: () => of.kill(part), start: () => of.start(part) };
}

/** Processes that PostgreSQL has started, which leave its process group; none for other parts. */
export function childrenOf(stack: Stack, victim: Victim, host = 0): number[] {
  const { pid } = placeOf(stack, 'postgres', host);
  if (victim !== 'postgres' || !pid) return [];
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
  return children.split(' ').filter(Boolean).map(Number);
}

/** Sends SIGKILL. @param host the place of the victim's host in `stack.hosts` */
export async function crash(stack: Stack, victim: Victim, host = 0): Promise<void> {
  // Looked up first: when their parent is dead, its children cannot be identified.
  const children = childrenOf(stack, victim, host);
  const killed = placeOf(stack, partOf(victim), host).kill();
  for (const child of children) sendSignal(child, 'SIGKILL');
  await killed;
}
