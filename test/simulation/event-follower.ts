import { setTimeout as sleep } from 'node:timers/promises';
import type { EventBody } from '../../edge/events/event-types.ts';
import type { Api } from '../support/api.ts';
import { type ServerEvent, serverEvents } from '../support/server-sent-events.ts';

export type ProjectEvent = ServerEvent<EventBody>;

/** Short, so that the connection is cut often; faults cut it in addition. */
const STREAM_SECONDS = 2;
const RECONNECT_AFTER_MS = 200;

/** Yields the changes of a project, as one connection shows them, and reports `ready` and `reset`. */
export async function* changesOf(
  api: Api,
  projectId: string,
  { after, seconds, signal }: { after: string | null; seconds: number; signal: AbortSignal },
  control: (event: ProjectEvent) => void = () => {},
): AsyncGenerator<ProjectEvent> {
  const response = await api.open(`/api/v1/projects/${projectId}/events?seconds=${seconds}`, {
    headers: after === null ? {} : { 'Last-Event-ID': after },
    signal,
  });
  if (response.status !== 200) {
    await response.body?.cancel();
    return;
  }
  for await (const event of serverEvents<EventBody>(response)) {
    if (event.event === 'ready' || event.event === 'reset') control(event);
    else yield event;
  }
}

/**
 * A client of a project's events during a schedule: it reconnects after each cut, with the id of its last
 * event.
 */
export class EventFollower {
  readonly received: ProjectEvent[] = [];
  /** The position at which it began; null: it never connected. */
  begin: string | null = null;
  /** Whether the gateway has reported missed events. */
  wasReset = false;
  #lastId: string | null = null;
  readonly #stopped = new AbortController();

  /** @param api of its user at each connection */
  constructor(projectId: string, api: () => Api) {
    void this.#follow(projectId, api);
  }

  get lastId(): string | null {
    return this.#lastId;
  }

  stop(): void {
    this.#stopped.abort();
  }

  async #follow(projectId: string, api: () => Api): Promise<void> {
    const { signal } = this.#stopped;
    const control = ({ id, event }: ProjectEvent) => {
      if (event === 'reset') this.wasReset = true;
      this.begin ??= id;
      this.#lastId = id;
    };
    while (!signal.aborted) {
      try {
        const wanted = { after: this.#lastId, seconds: STREAM_SECONDS, signal };
        for await (const event of changesOf(api(), projectId, wanted, control)) {
          this.received.push(event);
          this.#lastId = event.id;
        }
      } catch {
        // Cut, or the gateway is away.
      }
      await sleep(RECONNECT_AFTER_MS, undefined, { ref: false });
    }
  }
}
