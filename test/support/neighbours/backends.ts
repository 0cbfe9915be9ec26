import { readFileSync } from 'node:fs';
import { loginName } from '../../../shared/branch/login.ts';

export interface Backend {
  pid: number;
  /** As PostgreSQL shows it: login, database, address and what it does. */
  title: string;
}

/**
 * Sessions of a branch's logins that a client uses, from the titles of PostgreSQL's processes: it works also
 * while nobody can log in. Logins under way, and idle sessions that the pooler keeps, are left out.
 * @param postmaster process id of PostgreSQL
 */
export function backendsOf(postmaster: number, branchIds: readonly string[]): Backend[] {
  const logins = branchIds.map((id) => loginName(id, 'owner').replace(/owner$/, ''));
  return childrenOf(postmaster)
    .map((pid) => ({ pid, title: titleOf(pid) }))
    .filter(({ title }) => logins.some((login) => title.startsWith(`postgres: ${login}`)))
    .filter(({ title }) => !/ (authentication|startup|\[local\] idle)$/.test(title));
}

/** Ends them without SQL, as the operator would. */
export function signalBackends(backends: readonly Backend[]): void {
  for (const { pid, title } of backends) {
    // Another process may have the number by now.
    if (titleOf(pid).split(' ', 3).join(' ') !== title.split(' ', 3).join(' ')) continue;
    try {
      process.kill(pid, 'SIGTERM');
    } catch {
      // It has ended.
    }
  }
}

function childrenOf(pid: number): number[] {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return children.split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

function titleOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
  } catch {
    return '';
  }
}
