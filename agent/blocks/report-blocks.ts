import { CLOSED_NETWORKS_MAX, type ProjectBlocks } from '../../shared/block.ts';
import type { Queryable } from '../postgres/connect.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { attemptsUntilBlock, readBlocks, type StoredBlock } from './stored-blocks.ts';

const CHECK_EVERY_MS = 1_000;
/** While a project has a block, it is reported again: a report is lost when the link is down. */
const REPEAT_AFTER_MS = 60_000;

type Limits = Pick<AgentSettings, 'CONNECTION_ATTEMPTS_PER_MINUTE' | 'CONNECTION_ATTEMPTS_SCOPE'>;

interface Reported {
  at: number;
  text: string;
}

/** Reports the stored blocks of each project after each change, whatever has changed them. */
export class BlockReports {
  readonly #postgres: Queryable;
  readonly #limits: Limits;
  readonly #report: (blocks: ProjectBlocks) => void;
  /** By project: what was reported last. Without a block there is none. */
  readonly #reported = new Map<string, Reported>();

  constructor(
    { postgres, settings }: { postgres: Queryable; settings: Limits },
    report: (blocks: ProjectBlocks) => void,
  ) {
    this.#postgres = postgres;
    this.#limits = settings;
    this.#report = report;
  }

  run(log: Log, signal: AbortSignal): Promise<void> {
    return runLoop(() => this.check(), { every: CHECK_EVERY_MS, signal, log, failed: 'blocks.unreported' });
  }

  /** @param now milliseconds of a monotonic clock */
  async check(now = performance.now()): Promise<void> {
    const stored = Map.groupBy(await readBlocks(this.#postgres), ({ project_id }) => project_id);
    for (const project of new Set([...stored.keys(), ...this.#reported.keys()])) {
      const blocks = toReport(stored.get(project) ?? [], this.#limits);
      const text = JSON.stringify(blocks);
      const last = this.#reported.get(project);
      if (last?.text === text && now - last.at < REPEAT_AFTER_MS) continue;
      this.#report({ project_id: project, observed_at: new Date().toISOString(), blocks });
      if (blocks.length > 0) this.#reported.set(project, { at: now, text });
      else this.#reported.delete(project);
    }
  }
}

/** One for each branch and reason: too many attempts count until the last network is open again. */
const toReport = (blocks: readonly StoredBlock[], limits: Limits): ProjectBlocks['blocks'] =>
  [...Map.groupBy(blocks, ({ branch_id, reason }) => `${branch_id} ${reason}`).values()].flatMap((same) => {
    const last = same.at(-1);
    if (!last) return [];
    const { branch_id, reason, until } = last;
    const block = { branch_id, reason, until: until.toISOString() };
    return reason === 'attempts' ? { ...block, networks: networksOf(same, limits) } : block;
  });

const networksOf = (
  blocks: readonly StoredBlock[],
  { CONNECTION_ATTEMPTS_PER_MINUTE: byDefault, CONNECTION_ATTEMPTS_SCOPE: scope }: Limits,
) =>
  blocks.slice(-CLOSED_NETWORKS_MAX).map(({ address, until, connection_attempts }) => ({
    network: address,
    until: until.toISOString(),
    attempts: attemptsUntilBlock(scope, address, connection_attempts ?? byDefault),
  }));
