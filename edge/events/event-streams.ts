import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import type { EventLog, EventScope } from './event-log.ts';
import { type OpenStream, OpenStreams, serverSentEvent } from './open-streams.ts';
import type { StreamClient, StreamGate } from './stream-admission.ts';

/**
 * Whether a caller that can see the project sees this event. A project can move to another tenant, whose
 * events are not for a client of the former one. A machine limited to branches sees their events and those of
 * its own jobs (`jobsInReach`), but none of the project or of `main`.
 */
export function isInReach(
  { tenant_id, branch_names, machine_id }: EventScope,
  { tenantId, machine }: Pick<Principal, 'tenantId' | 'machine'>,
): boolean {
  if (tenant_id !== tenantId) return false;
  const pattern = machine?.branchPattern ?? null;
  if (pattern === null || machine_id === machine?.id) return true;
  const names: string[] = JSON.parse(branch_names);
  return names.length > 0 && names.every((name) => matchesPattern(pattern, name));
}

/** Concurrent streams of one project. */
export const EVENT_STREAMS_MAX = 20;
/** A change by another object, whose call was lost, is found after this time at the latest. */
const POLL_MS = 2_000;
/** Written immediately; the next are read from the log when the client has taken these. */
const EVENTS_PER_WRITE = 50;

interface Subject {
  principal: Principal;
  /** The last event that was written to the client. */
  position: number;
  /** The events after `position` are being written. */
  isWriting: boolean;
}

interface EventStreamsOptions {
  log: EventLog;
  /** Looks for events that nobody reported. */
  poll: (projectId: string) => void;
  gate: StreamGate;
}

/**
 * The open streams of events of one project. Each is a position in the log, so that a client gets every event
 * once and in order at its own speed, whatever instance of the object it is connected to.
 */
export class EventStreams {
  readonly #options: EventStreamsOptions;
  readonly #streams: OpenStreams<Subject>;
  #polling: ReturnType<typeof setInterval> | undefined;

  constructor(options: EventStreamsOptions) {
    this.#options = options;
    this.#streams = new OpenStreams({
      max: EVENT_STREAMS_MAX,
      gate: options.gate,
      closed: () => this.#closed(),
    });
  }

  /** @param after the last event that the client received; null: it starts with the next event */
  async open(
    projectId: string,
    client: StreamClient,
    { seconds, after }: { seconds: number; after: number | null },
  ): Promise<Result<ReadableStream, Failure>> {
    const { log, poll } = this.#options;
    const resumes = after !== null && log.continuesFrom(after);
    const position = resumes ? after : log.newest();
    // Nothing may be written before the first event, whose id must be the lowest.
    const subject = { principal: client.principal, position, isWriting: true };
    const opened = await this.#streams.open(projectId, client, subject, seconds);
    if (!opened.ok) return opened;
    const { stream, readable } = opened.value;
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

  #closed(): void {
    if (this.areOpen()) return;
    if (this.#polling !== undefined) clearInterval(this.#polling);
    this.#polling = undefined;
  }
}
