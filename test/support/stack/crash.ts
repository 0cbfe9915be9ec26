import { readFileSync } from 'node:fs';
import { sendSignal } from '../../../dev/stack/processes.ts';
import type { PartName } from '../../../dev/stack/programs.ts';
import type { Stack } from './stack.ts';

/** A part of the stack. `postgres` is every process of the server; `postmaster` is its first process. */
export type Victim = PartName | 'postmaster';

export const partOf = (victim: Victim): PartName => (victim === 'postmaster' ? 'postgres' : victim);

/** Processes that PostgreSQL has started, which leave its process group; none for other parts. */
export function childrenOf(stack: Stack, victim: Victim): number[] {
  const { postgres } = stack.state.pids;
  if (victim !== 'postgres' || !postgres) return [];
  const children = readFileSync(`/proc/${postgres}/task/${postgres}/children`, 'utf8');
  return children.split(' ').filter(Boolean).map(Number);
}

/** Sends SIGKILL. */
export async function crash(stack: Stack, victim: Victim): Promise<void> {
  // Looked up first: when their parent is dead, its children cannot be identified.
  const children = childrenOf(stack, victim);
  const killed = stack.kill(partOf(victim));
  for (const child of children) sendSignal(child, 'SIGKILL');
  await killed;
}
