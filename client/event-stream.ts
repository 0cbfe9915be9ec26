import { EventSourceParserStream } from 'eventsource-parser/stream';
import { ResponseError } from './response-error.ts';
import { sleep } from './sleep.ts';

/** One server-sent event. */
export interface StreamedEvent<Data = unknown> {
  id: string | null;
  type: string;
  data: Data;
}

export interface StreamOptions {
  /** Continues after this event, with all later ones. */
  lastEventId?: string;
  /** Ends the stream. */
  signal?: AbortSignal;
  /** Called when a connection has ended, before the stream makes the next one. */
  onCut?: () => void;
}

const RECONNECT_MS = 2_000;
const RECONNECT_MAX_MS = 30_000;
/** The gateway sends a comment every 15 seconds, so a silent connection is dead. */
const SILENCE_MAX_MS = 45_000;

/** How `fetch` reports that it got no response. */
const isUnreachable = (error: unknown) => error instanceof TypeError;

interface Position {
  lastEventId: string | null;
  reconnectMs: number;
}

/** Reads one connection until it ends. A connection that breaks ends without an error. */
async function* readConnection(body: ReadableStream<Uint8Array>, position: Position) {
  const events = new EventSourceParserStream({
    onRetry: (ms) => {
      position.reconnectMs = ms;
    },
  });
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
  const heard = new TransformStream<string, string>({
    transform(text, controller) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
      controller.enqueue(text);
    },
  });
  // A decoder accepts any kind of buffer, which its type in the DOM library does not say for a stream of
  // bytes.
  const decoder = new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>;
  const text = body.pipeThrough(decoder).pipeThrough(heard, { signal: silence.signal });
  const reader = text.pipeThrough(events).getReader();
  try {
    while (true) {
      const next = await reader.read().catch(() => null);
      if (!next || next.done) return;
      const { id, event = 'message', data } = next.value;
      if (id !== undefined) position.lastEventId = id;
      yield { id: id ?? null, type: event, data: JSON.parse(data) as unknown };
    }
  } finally {
    clearTimeout(timer);
    await reader.cancel().catch(() => {});
  }
}

/**
 * The events of a stream. Reconnects when a connection ends, and continues after the last event.
 * @throws ResponseError when the gateway refuses the stream
 */
export async function* streamEvents(
  url: string,
  send: (request: Request) => Promise<Response>,
  { lastEventId, signal, onCut }: StreamOptions,
): AsyncGenerator<StreamedEvent> {
  const position: Position = { lastEventId: lastEventId ?? null, reconnectMs: RECONNECT_MS };
  for (let failures = 0; !signal?.aborted; ) {
    const headers = new Headers({ Accept: 'text/event-stream' });
    if (position.lastEventId !== null) headers.set('Last-Event-ID', position.lastEventId);
    const request = new Request(url, { headers, ...(signal && { signal }) });
    const response = await send(request).catch((error: unknown) => {
      if (signal?.aborted || isUnreachable(error)) return null;
      throw error;
    });
    if (response && !response.ok && response.status < 500)
      throw new ResponseError(response, await response.json().catch(() => null));
    if (response?.ok && response.body) {
      failures = 0;
      yield* readConnection(response.body, position);
      onCut?.();
    } else {
      failures += 1;
      await response?.body?.cancel();
    }
    const pauseMs = Math.min(position.reconnectMs * 2 ** failures, RECONNECT_MAX_MS);
    await sleep(pauseMs, signal).catch(() => {});
  }
}
