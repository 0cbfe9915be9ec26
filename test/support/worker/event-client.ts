import type { EventBody } from '../../../edge/events/event-types.ts';
import { listenTo } from '../listen.ts';

/** A client of `GET …/events` or of another stream of a project, which reads until it is cut off. */
export async function openEvents(
  { url, token }: { url: string; token: string },
  projectId: string,
  lastEventId?: string,
  { outlivesTest = false, path = 'events' } = {},
) {
  const abort = new AbortController();
  const response = await fetch(`${url}/api/v1/projects/${projectId}/${path}`, {
    headers: {
      Authorization: `Bearer ${token}`,
      ...(lastEventId !== undefined && { 'Last-Event-ID': lastEventId }),
    },
    signal: abort.signal,
  });
  const listener = listenTo<EventBody>(response, abort, outlivesTest);
  return {
    response,
    received: listener.events,
    /** Without `ready` and `reset`. */
    changes: () => listener.events.filter(({ event }) => event !== 'ready' && event !== 'reset'),
    /** The `status` of each event of this type. */
    statuses: (type: string) =>
      listener.events.filter(({ event }) => event === type).map(({ data }) => data.data.status),
    hasEnded: () => listener.ended,
    lastId: () => listener.events.at(-1)?.id ?? '',
    cut: () => abort.abort(),
  };
}
