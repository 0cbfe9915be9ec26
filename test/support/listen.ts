import { onTestFinished } from 'vitest';
import { type ServerEvent, serverEvents } from './server-sent-events.ts';

/** Collects events until the stream ends, `abort` is called or the test is over. @param outlives the test */
export function listenTo<D>(response: Response, abort: AbortController, outlives = false) {
  const events: ServerEvent<D>[] = [];
  const listener = { events, ended: false };
  if (!outlives) onTestFinished(() => abort.abort());
  const listen = async () => {
    for await (const event of serverEvents<D>(response)) events.push(event);
    listener.ended = true;
  };
  // An aborted stream rejects.
  void listen().catch(() => {});
  return listener;
}
