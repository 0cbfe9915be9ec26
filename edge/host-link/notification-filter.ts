import { eq } from 'drizzle-orm';
import type { z } from 'zod';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { NotificationFrame } from '../../shared/protocol/frames.ts';
import { NOTIFICATIONS, type Notification } from '../../shared/protocol/notifications.ts';
import { singleFlight } from '../../shared/single-flight.ts';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';
import { countIn, type RateWindow } from '../rate-limits/counters.ts';

const MINUTE_MS = 60_000;
/** Minimum time between two lookups of the host's projects. */
const LOOKUP_APART_MS = 1_000;

/**
 * How many notifications of each kind one project may have, so that a faulty host cannot overload it; null:
 * of the host.
 */
const OF_PROJECT: Record<Notification, { max: number; windowMs: number } | null> = {
  measurement: { max: 1, windowMs: 500 },
  sizes: { max: 1, windowMs: 500 },
  // Each change of a block is sent immediately, and several may follow each other.
  blocks: { max: 30, windowMs: MINUTE_MS },
  follow: { max: 30, windowMs: MINUTE_MS },
  drill: { max: 5, windowMs: MINUTE_MS },
  // A comparison and three creations.
  progress: { max: 150, windowMs: MINUTE_MS },
  inventory_outdated: null,
};

type NotificationParams<N extends Notification> = z.output<(typeof NOTIFICATIONS)[N]['params']>;

interface NotificationFilterOptions {
  /** Looks up the ids of the projects on the host. */
  placed: () => Promise<Iterable<string>>;
  record: { [N in Notification]: (params: NotificationParams<N>) => Promise<void> };
  log: (event: string, fields: Record<string, unknown>) => void;
  now: () => number;
  bounds: Pick<Bounds, 'notificationsPerMinute'>;
}

/**
 * Passes on the notifications of a host that are well-formed, within the rate limits and about itself or its
 * own projects. The others are dropped; the next notification supersedes them.
 */
export class NotificationFilter {
  readonly #options: NotificationFilterOptions;
  readonly #ofHost = new Map<Notification, RateWindow>();
  /** By project, of each kind. */
  readonly #ofProject = new Map<string, Map<Notification, RateWindow>>();
  #placed: { ids: ReadonlySet<string>; at: number } | null = null;

  constructor(options: NotificationFilterOptions) {
    this.#options = options;
  }

  /** Never throws. */
  async receive({ method, params }: NotificationFrame): Promise<void> {
    if (this.#hasRoom(method)) await this.#receive(method, params);
  }

  async #receive<N extends Notification>(method: N, params: unknown): Promise<void> {
    const { log, record } = this.#options;
    const reading = NOTIFICATIONS[method].params.safeParse(params);
    if (!reading.success) {
      log(`${method}.malformed`, { places: reading.error.issues.map(({ path }) => path.join('.')) });
      return;
    }
    const project_id = 'project_id' in reading.data ? reading.data.project_id : null;
    try {
      if (project_id !== null && !(await this.#isPlaced(project_id))) {
        log(`${method}.foreign`, { project_id });
      } else if (project_id === null || this.#hasRoomFor(method, project_id)) {
        await record[method](reading.data as NotificationParams<N>);
      }
    } catch (error) {
      log(`${method}.lost`, { project_id, reason: String(error) });
    }
  }

  #hasRoom(method: Notification): boolean {
    const { now, bounds, log } = this.#options;
    const max = bounds.notificationsPerMinute;
    // One more is counted, which is logged.
    const limits = { max: max + 1, windowMs: MINUTE_MS };
    const { window, admitted } = countIn(this.#ofHost.get(method), now(), limits);
    this.#ofHost.set(method, window);
    const isFlood = window.count > max;
    if (admitted && isFlood) log(`${method}.flood`, { per_minute: max });
    return !isFlood;
  }

  /** Called only for projects on the host, so that invented ids do not grow the map. */
  #hasRoomFor(method: Notification, projectId: string): boolean {
    const limits = OF_PROJECT[method];
    if (!limits) return true;
    const windows = this.#ofProject.get(projectId) ?? new Map<Notification, RateWindow>();
    const { window, admitted } = countIn(windows.get(method), this.#options.now(), limits);
    this.#ofProject.set(projectId, windows.set(method, window));
    return admitted;
  }

  async #isPlaced(projectId: string): Promise<boolean> {
    const { now } = this.#options;
    if (this.#placed?.ids.has(projectId)) return true;
    if (this.#placed && now() - this.#placed.at < LOOKUP_APART_MS) return false;
    return (await this.#lookUpPlaced()).has(projectId);
  }

  readonly #lookUpPlaced = singleFlight(async (): Promise<ReadonlySet<string>> => {
    const { now, placed } = this.#options;
    const ids = new Set(await placed());
    this.#placed = { ids, at: now() };
    for (const id of this.#ofProject.keys()) if (!ids.has(id)) this.#ofProject.delete(id);
    return ids;
  });
}

/** The ids of the projects on this host. */
export async function projectsOn(db: Database, hostId: string): Promise<string[]> {
  const rows = await db.select({ id: projects.id }).from(projects).where(eq(projects.hostId, hostId));
  return rows.map(({ id }) => id);
}
