import { RpcTarget } from 'cloudflare:workers';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import type { Database, DatabaseBinding } from '../database/database.ts';
import type { Limiters } from '../rate-limits/limiter-client.ts';
import { type Deliver, EventFeed, EventLog } from './event-log.ts';
import { EventStreams } from './event-streams.ts';
import type { StreamClient } from './stream-admission.ts';

interface ProjectEventsOptions {
  env: DatabaseBinding & Limiters;
  db: Database;
  storage: DurableObjectStorage;
  waitUntil: (work: Promise<unknown>) => void;
  /** Repeats the publication after a failure. */
  retries: {
    succeeded: (work: 'events.not_published') => void;
    failed: (work: 'events.not_published', projectId: string, error: unknown) => void;
  };
  deliver: Deliver;
}

/** The events of one project: their log, their streams and their way to webhooks. */
export class ProjectEvents extends RpcTarget implements ProjectEventsRpc {
  readonly #options: ProjectEventsOptions;
  readonly #feed: EventFeed;
  readonly #streams: EventStreams;

  constructor(options: ProjectEventsOptions) {
    super();
    const { env, db, storage, deliver } = options;
    const log = new EventLog(storage);
    this.#options = options;
    this.#streams = new EventStreams({
      log,
      poll: (projectId) => this.publish(projectId),
      gate: { env, db, action: 'events.read' },
    });
    this.#feed = new EventFeed({ db, log, deliver, added: () => this.#streams.send() });
  }

  /** Publishes the events of what was changed, without waiting. */
  publish(projectId: string): void {
    const { waitUntil, retries } = this.#options;
    waitUntil(
      this.publishAll(projectId).then(
        () => retries.succeeded('events.not_published'),
        (error: unknown) => retries.failed('events.not_published', projectId, error),
      ),
    );
  }

  /**
   * As `publish`, if a stream is open. For a change that another one follows within a second: webhooks get
   * both then, and a quick job costs half the trips to D1.
   */
  publishToStreams(projectId: string): void {
    if (this.#streams.areOpen()) this.publish(projectId);
  }

  /** Waits until streams and webhooks have every event. */
  publishAll(projectId: string): Promise<void> {
    return this.#feed.move(projectId);
  }

  /** As `publishAll`, for a project that is gone: then ends its streams. */
  async finish(projectId: string): Promise<void> {
    await this.publishAll(projectId);
    this.#streams.closeAll();
  }

  stream(
    projectId: string,
    client: StreamClient,
    wanted: { seconds: number; after: number | null },
  ): Promise<Result<ReadableStream, Failure>> {
    return this.#streams.open(projectId, client, wanted);
  }
}

/** The events of one project, reached through its coordinator. */
export interface ProjectEventsRpc extends Rpc.RpcTargetBranded {
  /** @param wanted `after`: the last event that the client received; null: start with the next event */
  stream(
    projectId: string,
    client: StreamClient,
    wanted: { seconds: number; after: number | null },
  ): Promise<Result<ReadableStream, Failure>>;
}
