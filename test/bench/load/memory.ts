import { readFileSync } from 'node:fs';
import type pg from 'pg';
import { connectOnHost, socketsOf } from '../../support/host/host-session.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { pause } from './client.ts';

export const SAMPLE_EVERY_MS = 5_000;

interface Sources {
  pids: Stack['state']['pids'];
  /** The pooler's. */
  console: pg.Client;
}

/**
 * Miniflare's own process only starts workerd. PostgreSQL's shared memory is excluded, because its size is
 * configured.
 */
const READERS = {
  'gateway (workerd)': ({ pids }: Sources) => total(childrenOf(pids.gateway), 'Pss'),
  agent: ({ pids }: Sources) => total(listed(pids.agent), 'Pss'),
  PgBouncer: ({ pids }: Sources) => total(listed(pids.pgbouncer), 'Pss'),
  'PgBouncer, logins': ({ console }: Sources) => loginCache(console),
  'PostgreSQL, private': ({ pids }: Sources) =>
    total([...listed(pids.postgres), ...childrenOf(pids.postgres)], 'Pss_Anon'),
};
export type MemorySource = keyof typeof READERS;

/** MB of each process, sampled at equal intervals. */
export type MemorySamples = Record<MemorySource, number[]>;

const listed = (pid: number | null) => (pid ? [pid] : []);

function childrenOf(pid: number | null): number[] {
  if (!pid) return [];
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
  return children.split(' ').filter(Boolean).map(Number);
}

/** MB of these processes together, by one line of proc_pid_smaps_rollup(5). */
const total = (pids: number[], line: string) =>
  pids.reduce((sum, pid) => sum + kilobytes(pid, line), 0) / 1024;

function kilobytes(pid: number, line: string): number {
  try {
    const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
    return Number(new RegExp(`^${line}: +(\\d+) kB`, 'm').exec(rollup)?.[1] ?? 0);
  } catch {
    // The process has exited meanwhile.
    return 0;
  }
}

/** MB of PgBouncer's cache of logins, including dropped ones and the spare capacity. */
async function loginCache(console: pg.Client): Promise<number> {
  const { rows } = await console.query<{ name: string; memtotal: string }>('SHOW MEM');
  return Number(rows.find(({ name }) => name === 'user_cache')?.memtotal) / 2 ** 20;
}

/** Samples every five seconds, until the end. */
export async function watchMemory({ state }: Stack, ending: AbortSignal): Promise<MemorySamples> {
  const readers = Object.entries(READERS).map(([name, read]) => ({ name, read, found: [] as number[] }));
  const console = await connectOnHost(socketsOf(state).pooler, 'pgbouncer');
  const started = performance.now();
  for (let round = 1; !ending.aborted; round++) {
    for (const { read, found } of readers) found.push(await read({ pids: state.pids, console }));
    await pause(started + round * SAMPLE_EVERY_MS - performance.now(), ending);
  }
  await console.end();
  return Object.fromEntries(readers.map(({ name, found }) => [name, found])) as MemorySamples;
}
