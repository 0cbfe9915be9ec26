import { eq } from 'drizzle-orm';
import type { z } from 'zod';
import type { ProjectMeasurement, ProjectSizes } from '../../shared/measurement.ts';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { NotificationFrame } from '../../shared/protocol/frames.ts';
import { NOTIFICATIONS } from '../../shared/protocol/notifications.ts';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';

const MINUTE_MS = 60_000;
/** Minimum time between two equal notifications about a project, so that a faulty host cannot overload it. */
const APART_MS = 500;
/** Minimum time between two lookups of the host's projects. */
const LOOKUP_APART_MS = 1_000;

interface MeasurementsOptions {
  /** Looks up the ids of the projects on the host. */
  placed: () => Promise<Iterable<string>>;
  record: (measurement: ProjectMeasurement) => Promise<void>;
  recordSizes: (sizes: ProjectSizes) => Promise<void>;
  log: (event: string, fields: Record<string, unknown>) => void;
  now: () => number;
  bounds: Pick<Bounds, 'notificationsPerMinute'>;
}

/**
 * Passes on the measurements and sizes of a host that are well-formed, within the rate limit and about its own projects. The
 * others are dropped; the next measurement supersedes them.
 */
export class MeasurementFilter {
  readonly #options: MeasurementsOptions;
  #window = { end: 0, count: 0 };
  /** When the last notification of each method was passed on, by project, in Unix milliseconds. */
  #passed = new Map<string, Record<string, number>>();
  #placed: { ids: ReadonlySet<string>; at: number } | null = null;
  #lookup: Promise<ReadonlySet<string>> | null = null;

  constructor(options: MeasurementsOptions) {
    this.#options = options;
  }

  /** Never throws. */
  async receive({ method, params }: NotificationFrame): Promise<void> {
    const { record, recordSizes } = this.#options;
    if (!this.#hasRoom()) return;
    if (method === 'measurement') await this.#passOn(method, NOTIFICATIONS[method].params, params, record);
    if (method === 'sizes') await this.#passOn(method, NOTIFICATIONS[method].params, params, recordSizes);
  }

  async #passOn<T extends { project_id: string }>(
    method: string,
    schema: z.ZodType<T>,
    params: unknown,
    record: (value: T) => Promise<void>,
  ): Promise<void> {
    const { log } = this.#options;
    const reading = schema.safeParse(params);
    if (!reading.success) {
      log('measurement.malformed', { places: reading.error.issues.map(({ path }) => path.join('.')) });
      return;
    }
    const { project_id } = reading.data;
    try {
      if (!(await this.#isPlaced(project_id))) {
        log('measurement.foreign', { project_id });
      } else if (this.#isApart(method, project_id)) {
        await record(reading.data);
      }
    } catch (error) {
      log('measurement.lost', { project_id, reason: String(error) });
    }
  }

  #hasRoom(): boolean {
    const { now, bounds, log } = this.#options;
    if (now() >= this.#window.end) this.#window = { end: now() + MINUTE_MS, count: 0 };
    this.#window.count += 1;
    if (this.#window.count === bounds.notificationsPerMinute + 1) {
      log('measurement.flood', { per_minute: bounds.notificationsPerMinute });
    }
    return this.#window.count <= bounds.notificationsPerMinute;
  }

  /** Called only for projects on the host, so that invented ids do not grow the map. */
  #isApart(method: string, projectId: string): boolean {
    const now = this.#options.now();
    const passed = this.#passed.get(projectId) ?? {};
    if (now - (passed[method] ?? Number.NEGATIVE_INFINITY) < APART_MS) return false;
    this.#passed.set(projectId, { ...passed, [method]: now });
    return true;
  }

  async #isPlaced(projectId: string): Promise<boolean> {
    const { now } = this.#options;
    if (this.#placed?.ids.has(projectId)) return true;
    if (this.#placed && now() - this.#placed.at < LOOKUP_APART_MS) return false;
    this.#lookup ??= this.#lookUpPlaced().finally(() => {
      this.#lookup = null;
    });
    return (await this.#lookup).has(projectId);
  }

  async #lookUpPlaced(): Promise<ReadonlySet<string>> {
    const { now, placed } = this.#options;
    const ids = new Set(await placed());
    this.#placed = { ids, at: now() };
    for (const id of this.#passed.keys()) if (!ids.has(id)) this.#passed.delete(id);
    return ids;
  }
}

/** The ids of the projects on this host. */
export async function projectsOn(db: Database, hostId: string): Promise<string[]> {
  const rows = await db.select({ id: projects.id }).from(projects).where(eq(projects.hostId, hostId));
  return rows.map(({ id }) => id);
}
