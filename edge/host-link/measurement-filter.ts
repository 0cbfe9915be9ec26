import { eq } from 'drizzle-orm';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { NotificationFrame } from '../../shared/protocol/frames.ts';
import { NOTIFICATIONS } from '../../shared/protocol/notifications.ts';
import type { Database } from '../database/database.ts';
import { projects } from '../database/schema.ts';

const MINUTE_MS = 60_000;
/** Two measurements of a project are at least so far apart: a host that is out of its mind must not keep it busy. */
const APART_MS = 500;
/** A project that is not known to be on the host is looked for no sooner than this after the last look. */
const LOOK_AGAIN_MS = 1_000;

interface MeasurementsOptions {
  /** Ids of the projects that are placed on the host. */
  placed: () => Promise<Iterable<string>>;
  record: (measurement: ProjectMeasurement) => Promise<void>;
  log: (event: string, fields: Record<string, unknown>) => void;
  now: () => number;
  bounds: Pick<Bounds, 'notificationsPerMinute'>;
}

/**
 * Passes on what a host says of its projects: no more than it may say, nothing of wrong form, and nothing of
 * projects that are not its own. What it says too much is dropped; the next measurement tells the same and more.
 */
export class MeasurementFilter {
  readonly #options: MeasurementsOptions;
  #window = { end: 0, count: 0 };
  /** When each project's last measurement that was passed on came, and how many were not since. */
  #passed = new Map<string, number>();
  #placed: { ids: ReadonlySet<string>; at: number } | null = null;
  #looking: Promise<ReadonlySet<string>> | null = null;

  constructor(options: MeasurementsOptions) {
    this.#options = options;
  }

  /** Never throws. */
  async receive({ method, params }: NotificationFrame): Promise<void> {
    const { log, record } = this.#options;
    if (!this.#hasRoom()) return;
    const reading = NOTIFICATIONS[method].params.safeParse(params);
    if (!reading.success) {
      log('measurement.malformed', { places: reading.error.issues.map(({ path }) => path.join('.')) });
      return;
    }
    const { project_id } = reading.data;
    try {
      if (!(await this.#isPlaced(project_id))) {
        log('measurement.foreign', { project_id });
      } else if (this.#isApart(project_id)) {
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

  /** Only placed projects come here, so the map does not grow with what a host makes up. */
  #isApart(projectId: string): boolean {
    const now = this.#options.now();
    if (now - (this.#passed.get(projectId) ?? Number.NEGATIVE_INFINITY) < APART_MS) return false;
    this.#passed.set(projectId, now);
    return true;
  }

  async #isPlaced(projectId: string): Promise<boolean> {
    const { now } = this.#options;
    if (this.#placed?.ids.has(projectId)) return true;
    if (this.#placed && now() - this.#placed.at < LOOK_AGAIN_MS) return false;
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null;
    });
    return (await this.#looking).has(projectId);
  }

  async #look(): Promise<ReadonlySet<string>> {
    const { now, placed } = this.#options;
    const ids = new Set(await placed());
    this.#placed = { ids, at: now() };
    for (const id of this.#passed.keys()) if (!ids.has(id)) this.#passed.delete(id);
    return ids;
  }
}

/** A project stays on the host that it was placed on. */
export async function projectsOn(db: Database, hostId: string): Promise<string[]> {
  const rows = await db.select({ id: projects.id }).from(projects).where(eq(projects.hostId, hostId));
  return rows.map(({ id }) => id);
}
