import { sharedNextFlight } from '../../shared/single-flight.ts';
import { ProjectGate } from '../process/project-gate.ts';

/** A reading that nobody waits for any more is forgotten. */
interface Shared<T> {
  waiting: number;
  read: () => Promise<T>;
}

/**
 * Bounds the readings of schemas for changes: each makes a login and runs pg_dump, and every member of a project asks
 * for one with each GET of a change. Calls for one database share the next reading.
 */
export class SchemaReadings {
  /** Plans, and one reading that all share. */
  readonly #gate = new ProjectGate({ ofProject: 3, ofHost: 6, noun: 'reading of a schema' });
  readonly #shared = new Map<string, Shared<string>>();

  /** @throws HostError PROJECT_BUSY, HOST_BUSY immediately */
  async alone<T>(projectId: string, read: () => Promise<T>): Promise<T> {
    const leave = this.#gate.enter(projectId);
    try {
      return await read();
    } finally {
      leave();
    }
  }

  /** @throws HostError as `alone` */
  async shared(projectId: string, database: string, read: () => Promise<string>): Promise<string> {
    const shared = this.#shared.get(database) ?? {
      waiting: 0,
      read: sharedNextFlight(() => this.alone(projectId, read)),
    };
    this.#shared.set(database, shared);
    shared.waiting++;
    try {
      return await shared.read();
    } finally {
      if (--shared.waiting === 0) this.#shared.delete(database);
    }
  }
}
