import { countClients, openConsoleIfRunning, showClients } from '../pooler/admin-console.ts';
import { type Instance, instancesNow } from '../pooler/restart-state.ts';
import type { OwnSession } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';

/** The console of each PgBouncer that runs, which stays open. */
export class PoolerConsoles {
  readonly #settings: AgentSettings;
  readonly #open = new Map<Instance, OwnSession>();

  constructor(settings: AgentSettings) {
    this.#settings = settings;
  }

  /**
   * @returns how many clients each database has; null while all databases together have no more than `few`
   * @throws HostError POOLER_UNAVAILABLE
   */
  async readClients(few: number): Promise<Map<string, number> | null> {
    const { newClients, other } = instancesNow(this.#settings);
    const consoles = [];
    for (const instance of [newClients, ...(other === null ? [] : [other])]) {
      const console = await this.#consoleOf(instance);
      if (console) consoles.push(console);
    }
    let total = 0;
    for (const console of consoles) total += await countClients(console);
    if (total <= few) return null;
    const counts = new Map<string, number>();
    for (const console of consoles)
      for (const { database } of await showClients(console))
        counts.set(database, (counts.get(database) ?? 0) + 1);
    return counts;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((console) => console.end().catch(() => {})));
  }

  async #consoleOf(instance: Instance): Promise<OwnSession | null> {
    const open = this.#open.get(instance);
    if (open) return open;
    const opened = await openConsoleIfRunning(this.#settings, instance, () => this.#open.delete(instance));
    if (opened) this.#open.set(instance, opened);
    return opened;
  }
}
