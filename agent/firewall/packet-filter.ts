import { HostError } from '../servers/host-error.ts';
import { nft } from './nft.ts';
import { COUNTING_SETS, networksRuleset, type Ports, tableName, tableRuleset } from './ruleset.ts';

/** Whether the table exists; null when this process may not read it. */
export async function hasTable(ports: Ports): Promise<boolean | null> {
  try {
    return (await nft(['list', 'tables'])).split('\n').includes(`table ${tableName(ports)}`);
  } catch {
    return null;
  }
}

/** The nftables table that admits exactly the networks of all rules to both ports. */
export class PacketFilter {
  readonly #ports: Ports;
  /** The networks that were published last, and the table as the kernel lists it since; null: unknown. */
  #published: { networks: string; listing: string } | null = null;

  constructor(ports: Ports) {
    this.#ports = ports;
  }

  /**
   * Resolves when exactly these networks are admitted. Calls must not run concurrently.
   * @throws HostError RULES_NOT_APPLIED
   */
  async publish(cidrs: readonly string[]): Promise<void> {
    const wanted = [...new Set(cidrs)].sort();
    const networks = wanted.join();
    if (this.#published?.networks === networks) return;
    const isKnown = this.#published !== null;
    this.#published = null;
    const replaceTable = () => nft(['-f', '-'], tableRuleset(this.#ports, wanted));
    try {
      // It fails when someone has removed the table.
      if (isKnown) await nft(['-f', '-'], networksRuleset(this.#ports, wanted)).catch(replaceTable);
      else await replaceTable();
      this.#published = { networks, listing: await this.#list() };
    } catch (error) {
      throw new HostError(
        'RULES_NOT_APPLIED',
        `the packet filter was not changed: ${error instanceof Error ? error.message : error}`,
      );
    }
  }

  /** Whether the kernel has the table as it was published last. */
  async isIntact(): Promise<boolean> {
    if (!this.#published) return false;
    return (await this.#list().catch(() => null)) === this.#published.listing;
  }

  /** Makes the next `publish` replace the whole table. */
  forget(): void {
    this.#published = null;
  }

  /** The table without what the kernel counts. */
  async #list(): Promise<string> {
    const listing = await nft(['list', 'table', ...tableName(this.#ports).split(' ')]);
    return COUNTING_SETS.reduce(
      (text, set) => text.replace(new RegExp(`\\tset ${set} \\{[\\s\\S]*?\\n\\t\\}`), ''),
      listing,
    );
  }
}
