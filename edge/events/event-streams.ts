import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { EventClient } from '../projects/coordinator-rpc.ts';
import { type OpenStream, OpenStreams, serverSentEvent } from '../streams/open-streams.ts';
import type { EventLog } from './event-log.ts';
import { isInReach } from './event-reach.ts';

/** Concurrent streams of one project. */
export const EVENT_STREAMS_MAX = 20;
/** A change by another object, whose call was lost, is found after this time at the latest. */
const POLL_MS = 2_000;
/** Written immediately; the next are read from the log when the client has taken these. */
const EVENTS_PER_WRITE = 50;

interface Subject extends EventClient {
  projectId: string;
  /** Of the user's newest token when the stream opened: its issue time. */
  openedAt: Date;
  /** The last event that was written to the client. */
  position: number;
  /** The events after `position` are being written. */
  isWriting: boolean;
}

interface EventStreamsOptions {
  log: EventLog;
  /** Looks for events that nobody reported. */
  poll: (projectId: string) => void;
  /** Whether the client may still read the project, and gets or renews its place among the tenant's streams. */
  admit: (projectId: string, client: EventClient, openedAt: Date | null) => Promise<Result<Date, Failure>>;
  /** The stream has ended. */
  leave: (client: EventClient) => void;
}

/**
 * The open streams of events of one project. Each is a position in the log, so that a client gets every event once and
 * in order at its own speed, whatever instance of the object it is connected to.
 */
export class EventStreams {
  readonly #options: EventStreamsOptions;
  readonly #streams: OpenStreams<Subject>;
  #polling: ReturnType<typeof setInterval> | undefined;

  constructor(options: EventStreamsOptions) {
    this.#options = options;
    this.#streams = new OpenStreams({
      max: EVENT_STREAMS_MAX,
      heartbeat: () => this.#readmitAll(),
      closed: (client) => this.#closed(client),
    });
  }

  /** @param after the last event that the client received; null: it starts with the next event */
  async open(
    projectId: string,
    client: EventClient,
    { seconds, after }: { seconds: number; after: number | null },
  ): Promise<Result<ReadableStream, Failure>> {
    const { log, poll, admit, leave } = this.#options;
    const admitted = await admit(projectId, client, null);
    if (!admitted.ok) return admitted;
    const resumes = after !== null && log.continuesFrom(after);
    const position = resumes ? after : log.newest();
    // Nothing may be written before the first event, whose id must be the lowest.
    const opened = await this.#streams.open(
      { ...client, projectId, openedAt: admitted.value, position, isWriting: true },
      seconds,
    );
    if (!opened) {
      leave(client);
      return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: EVENT_STREAMS_MAX } });
    }
    const { stream, readable } = opened;
    if (!resumes) {
      const data = JSON.stringify({ project_id: projectId });
      this.#streams.write(stream, serverSentEvent(position, after === null ? 'ready' : 'reset', data));
    }
    stream.subject.isWriting = false;
    void this.#writeNew(stream);
    this.#polling ??= setInterval(() => poll(projectId), POLL_MS);
    poll(projectId);
    return ok(readable);
  }

  /** Writes what was added to the log. */
  send(): void {
    for (const stream of this.#streams.all()) void this.#writeNew(stream);
  }

  areOpen(): boolean {
    return this.#streams.all().length > 0;
  }

  closeAll(): void {
    for (const stream of this.#streams.all()) this.#streams.close(stream);
  }

  async #writeNew(stream: OpenStream<Subject>): Promise<void> {
    const { subject } = stream;
    if (subject.isWriting) return;
    subject.isWriting = true;
    for (;;) {
      const events = this.#options.log.after(subject.position, EVENTS_PER_WRITE);
      const last = events.at(-1);
      if (!last) break;
      const text = events
        .filter((event) => isInReach(event, subject.principal))
        .map(({ seq, type, body }) => serverSentEvent(seq, type, body))
        .join('');
      subject.position = last.seq;
      if (text !== '' && !(await this.#streams.write(stream, text))) return;
    }
    subject.isWriting = false;
  }

  /** Ends the streams of clients that have lost their access. They reconnect, and the pipeline answers them. */
  #readmitAll(): void {
    for (const stream of this.#streams.all()) {
      const { subject } = stream;
      this.#options
        .admit(subject.projectId, subject, subject.openedAt)
        .then(({ ok: admitted }) => admitted)
        .catch(() => false)
        .then((admitted) => admitted || this.#streams.close(stream));
    }
  }

  #closed(client: EventClient): void {
    this.#options.leave(client);
    if (this.areOpen()) return;
    if (this.#polling !== undefined) clearInterval(this.#polling);
    this.#polling = undefined;
  }
}
