import { execFile } from 'node:child_process';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import {
  type Admitted,
  COUNTING_SETS,
  networksRuleset,
  type Ports,
  tableName,
  tableRuleset,
} from './ruleset.ts';

interface FilteredHost {
  settings: Pick<AgentSettings, 'FIREWALL'>;
  rules: { restoreFilter: () => Promise<void> };
  log: Log;
}

const WITHIN_MS = 20_000;
/** A listing names every network. */
const LISTING_BYTES = 64 * 1024 * 1024;
/** Folders of `nft`, which a service's PATH may lack. */
const SYSTEM_FOLDERS = '/usr/sbin:/sbin';

/** Runs `nft` to its end. @throws Error with its complaint, or what is missing */
export function nft(args: string[], input = ''): Promise<string> {
  const env = { ...process.env, PATH: `${process.env.PATH ?? ''}:${SYSTEM_FOLDERS}` };
  const options = { env, timeout: WITHIN_MS, maxBuffer: LISTING_BYTES };
  return new Promise((resolve, reject) => {
    const child = execFile('nft', args, options, (error, stdout, stderr) => {
      if (error) reject(new Error(explain(error, stderr)));
      else resolve(stdout);
    });
    // It may end before it has read everything; its exit code says why.
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}

function explain(error: Error & { code?: unknown }, stderr: string): string {
  if (error.code === 'ENOENT') return 'install nftables';
  if (/not permitted/.test(stderr))
    return 'start the agent with CAP_NET_ADMIN (`configuration branchgate-agent.service.conf`)';
  return stderr.trim().split('\n')[0] || error.message;
}

/** Whether the table exists; null when this process may not read it. */
export async function hasTable(ports: Ports): Promise<boolean | null> {
  try {
    return (await nft(['list', 'tables'])).split('\n').includes(`table ${tableName(ports)}`);
  } catch {
    return null;
  }
}

/** The nftables table that admits exactly the networks of all rules to the ports. */
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
  async publish({ servers, sql }: Admitted): Promise<void> {
    const sorted = (cidrs: readonly string[]) => [...new Set(cidrs)].sort();
    const wanted = { servers: sorted(servers), sql: sorted(sql) };
    const networks = JSON.stringify(wanted);
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

const CHECK_EVERY_MS = 5_000;

/** Publishes the rules to the packet filter again when someone else has changed it or them. */
export async function runFilterLoop(
  { settings, rules, log }: FilteredHost,
  signal: AbortSignal,
): Promise<void> {
  if (settings.FIREWALL === 'off') return;
  const events = { failed: 'firewall.unpublished', recovered: 'firewall.published' };
  await runLoop(() => rules.restoreFilter(), { every: CHECK_EVERY_MS, signal, log, ...events });
}
