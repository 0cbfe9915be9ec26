import { useEffect, useRef, useState } from 'react';
import type { StreamedEvent, StreamOptions } from '../../client/event-stream.ts';
import { ResponseError } from '../../client/response-error.ts';
import { sleep } from '../../client/sleep.ts';
import { gateway } from './gateway.ts';
import { refresh } from './query-client.ts';
import { liveProject } from './resources.ts';

/** A page that is passed quickly opens no stream of measurements. */
const SETTLED_MS = 1_000;
/** After a refusal that passes, for instance because the project has too many streams. */
const AGAIN_MS = 30_000;

type Open = (options: StreamOptions) => AsyncGenerator<StreamedEvent>;
type Listener = (event: StreamedEvent) => void;

/** Reads a stream until it is aborted or the gateway refuses it for good. */
async function follow(open: Open, onEvent: Listener, signal: AbortSignal, onCut: () => void): Promise<void> {
  while (!signal.aborted) {
    try {
      for await (const event of open({ signal, onCut })) onEvent(event);
    } catch (error) {
      if (!(error instanceof ResponseError && error.status === 429)) return;
    } finally {
      onCut();
    }
    await sleep(AGAIN_MS, signal).catch(() => {});
  }
}

/**
 * Follows a stream while its page is visible, because a browser has few connections for all pages of an
 * origin.
 * @param key what the stream is about; null for none
 * @param afterMs how long the page is shown before the stream is opened
 * @returns whether events arrive
 */
function useStream(key: string | null, open: Open, onEvent: Listener, afterMs = 0): boolean {
  const [isConnected, setConnected] = useState(false);
  const current = useRef({ open, onEvent });
  current.current = { open, onEvent };
  useEffect(() => {
    if (key === null) return;
    let end = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const start = () => {
      clearTimeout(timer);
      end.abort();
      end = new AbortController();
      const { signal } = end;
      if (document.visibilityState !== 'visible') return;
      const set = (connected: boolean) => !signal.aborted && setConnected(connected);
      const listener: Listener = (event) => {
        set(true);
        current.current.onEvent(event);
      };
      const begin = () =>
        follow(
          (options) => current.current.open(options),
          listener,
          signal,
          () => set(false),
        );
      timer = setTimeout(begin, afterMs);
    };
    start();
    document.addEventListener('visibilitychange', start);
    return () => {
      document.removeEventListener('visibilitychange', start);
      clearTimeout(timer);
      end.abort();
      setConnected(false);
    };
  }, [key, afterMs]);
  return isConnected;
}

/** What an event changes, by the first part of the keys of its queries. */
const CHANGED: Readonly<Record<string, readonly string[]>> = {
  'project.changed': ['project'],
  'branch.changed': ['branches', 'deleted-branches', 'project', 'usage'],
  'network_rule.changed': ['rules'],
  'snapshot.changed': ['snapshots', 'usage'],
  'job.changed': ['jobs', 'follow'],
  'change.changed': ['changes', 'change'],
  'follow.changed': ['follow', 'branches'],
  'storage.changed': ['project', 'usage'],
  'project.failed_over': ['project', 'branches', 'snapshots', 'follow'],
};
/** A job that has ended can also have kept or dropped the database of a deleted branch. */
const ENDED: readonly string[] = ['deleted-branches', 'usage'];
const EVERYTHING = [...new Set([...Object.values(CHANGED).flat(), ...ENDED])];

function changedBy({ type, data }: StreamedEvent): readonly string[] {
  const changed = CHANGED[type];
  // `ready` and `reset`: everything may have changed before the first event.
  if (!changed) return EVERYTHING;
  const { status } = (data as { data: { status?: string } }).data;
  const hasEnded = type === 'job.changed' && (status === 'succeeded' || status === 'failed');
  return hasEnded ? [...changed, ...ENDED] : changed;
}

/** Events that come together, for instance one measurement of each branch, cause one reading. */
const TOGETHER_MS = 150;
const due = new Map<string, { queryKey: readonly string[] }>();

function refreshOf(projectId: string, names: readonly string[]): void {
  if (due.size === 0)
    setTimeout(() => {
      const queries = [...due.values()];
      due.clear();
      refresh(...queries);
    }, TOGETHER_MS);
  for (const name of names) due.set(`${name} ${projectId}`, { queryKey: [name, projectId] });
}

/** Keeps what the pages of a project show up to date by its events. */
export function useLiveProject(projectId: string | null): void {
  const isConnected = useStream(
    projectId,
    (options) => gateway.events(projectId ?? '', options),
    (event) => refreshOf(projectId ?? '', changedBy(event)),
  );
  const followed = useRef<string | null>(null);
  useEffect(() => {
    liveProject.set(isConnected ? projectId : null);
    // Each query then decides anew whether it polls.
    if (!isConnected && projectId !== null && followed.current === projectId)
      refreshOf(projectId, EVERYTHING);
    followed.current = isConnected ? projectId : null;
    return () => liveProject.set(null);
  }, [isConnected, projectId]);
}

/**
 * Keeps the measurements of a project, or of one of its branches, up to date.
 * @returns whether they arrive by themselves
 */
export const useLiveMeasurements = (projectId: string, branch?: string): boolean =>
  useStream(
    JSON.stringify([projectId, branch]),
    (options) => gateway.measurements(projectId, { ...options, ...(branch !== undefined && { branch }) }),
    // What the page has just read is the latest measurement.
    ({ type }) =>
      type !== 'ready' && refreshOf(projectId, branch === undefined ? ['connections', 'usage'] : ['series']),
    SETTLED_MS,
  );
