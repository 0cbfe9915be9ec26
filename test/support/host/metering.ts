import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { Meter, type Round } from '../../../agent/measurement/meter.ts';
import type { BranchMeasurement } from '../../../shared/measurement.ts';
import type { TestHost } from './host.ts';
import type { Branch } from './host-project.ts';

const POLL_EVERY_MS = 1_000;

/** Makes the session report its statistics immediately. It is one more transaction. */
export const flush = (client: pg.Client) =>
  client.query('SELECT pg_stat_force_next_flush() FROM pg_database LIMIT 1');

export function branchIn({ measurements }: Round, { branch_id }: Branch): BranchMeasurement {
  const found = measurements
    .flatMap(({ branches }) => branches)
    .find((branch) => branch.branch_id === branch_id);
  if (!found) throw new Error(`branch ${branch_id} was not measured`);
  return found;
}

/** A meter like the agent's, of which a test reads one branch. */
export class TestMeter {
  readonly meter: Meter;

  constructor({ settings }: TestHost) {
    this.meter = new Meter(settings, { stores: true });
  }

  async read(branch: Branch): Promise<BranchMeasurement> {
    return branchIn(await this.meter.measure(), branch);
  }

  /** Polls while `action` runs, as often as the agent does. */
  async pollDuring<T>(action: () => Promise<T>): Promise<T> {
    const done = new AbortController();
    const polling = (async () => {
      while (!done.signal.aborted) {
        await this.meter.sample();
        await sleep(POLL_EVERY_MS);
      }
    })();
    try {
      return await action();
    } finally {
      done.abort();
      await polling;
    }
  }

  /** The change of the branch's numbers by `action`. */
  async gainBy(branch: Branch, action: () => Promise<unknown>): Promise<BranchMeasurement> {
    const before = await this.read(branch);
    await action();
    return difference(before, await this.read(branch));
  }
}

const difference = (before: BranchMeasurement, after: BranchMeasurement): BranchMeasurement =>
  Object.fromEntries(
    Object.entries(after).map(([name, value]) => [
      name,
      typeof value === 'number' ? value - Number(Reflect.get(before, name)) : value,
    ]),
  ) as unknown as BranchMeasurement;
