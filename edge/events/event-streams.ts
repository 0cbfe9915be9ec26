import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Machine } from '../database/column-types.ts';
import type { Database, DatabaseBinding } from '../database/database.ts';
import { users } from '../database/schema.ts';
import { settled } from '../errors.ts';
import { repeatIfLost } from '../lost-object.ts';
import { machinePrincipal, machineRecord } from '../machines/authenticate-machine.ts';
import { allow } from '../permissions.ts';
import { streamsBucket } from '../rate-limits/buckets.ts';
import type { Limiters } from '../rate-limits/limiter-client.ts';
import { readSettings } from '../settings.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import { readProject } from '../tenancy/project-access.ts';
import { currentAccountRole } from '../tenancy/users.ts';
import type { EventLog, EventScope } from './event-log.ts';

import { type OpenStream, OpenStreams, serverSentEvent } from './open-streams.ts';

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
  /**
   * Whether the client may still read the project, and gets or renews its place among the tenant's streams.
   */
  admit: (projectId: string, client: EventClient, openedAt: Date | null) => Promise<Result<Date, Failure>>;
  /** The stream has ended. */
  leave: (client: EventClient) => void;
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

  /**
   * Ends the streams of clients that have lost their access. They reconnect, and the pipeline answers them.
   */
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

/** Concurrent event streams of all projects of a tenant. */
export const TENANT_STREAMS_MAX = 50;

const streamsOf = ({ RATE_LIMITER }: DatabaseBinding & Limiters, { principal }: EventClient) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(streamsBucket(principal.tenantId)));

/**
 * Whether the client may read the project's events now, and has a place among the streams of its tenant.
 * Called when a stream opens and with each of its heartbeats.
 * @param openedAt result of the first call, null for that call
 * @returns the issue time of the newest token of the user
 */
export async function admitToStream(
  env: DatabaseBinding & Limiters,
  db: Database,
  projectId: string,
  client: EventClient,
  openedAt: Date | null,
): Promise<Result<Date, Failure>> {
  const { userId, tenantId } = client.principal;
  const [[user], hasPlace] = await Promise.all([
    db.select().from(users).where(eq(users.id, userId)),
    repeatIfLost(() => streamsOf(env, client).hold(client.id, TENANT_STREAMS_MAX)),
  ]);
  if (!hasPlace) return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: TENANT_STREAMS_MAX } });
  if (user?.tenantId === tenantId) {
    const newerRole = openedAt && openedAt < user.tenantSeenAt ? user.role : null;
    const permission = await permissionOf(env, db, client.principal, newerRole);
    const project = permission && (await readProject(db, permission, projectId, []));
    if (project?.ok && project.value) return ok(user.tenantSeenAt);
  }
  leaveStreams(env, client);
  return fail({ code: 'NOT_FOUND' });
}

/** Frees the place. If the call fails, the place is free when its lease ends. */
export function leaveStreams(env: DatabaseBinding & Limiters, client: EventClient): void {
  streamsOf(env, client)
    .release(client.id)
    .catch(() => {});
}

/** What the caller may read now; null if its session or machine is gone, or its role no longer allows it. */
async function permissionOf(
  env: DatabaseBinding & Limiters,
  db: Database,
  caller: Principal,
  newerRole: string | null,
) {
  const find = async () => {
    const principal = caller.machine
      ? await presentMachine(env, caller, caller.machine)
      : { ...caller, role: (await currentAccountRole(db, caller, new Date())) ?? newerRole ?? caller.role };
    return principal && { principal, reach: allow(principal, 'events.read'), isChange: false };
  };
  const found = await settled(find());
  return found.ok ? found.value : null;
}

async function presentMachine(env: DatabaseBinding & Limiters, { expiresAt }: Principal, machine: Machine) {
  const record = await machineRecord(env.DB, machine, new Date());
  return record && machinePrincipal({ record, expiresAt }, readSettings(env));
}

/** A client that wants events. */
export interface EventClient {
  id: string;
  principal: Principal;
}
