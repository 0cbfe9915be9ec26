import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { eventually } from '../eventually.ts';
import type { TestHost } from './host.ts';

/** A node of a plan that was run, as `auto_explain` logs it. */
interface PlanNode {
  'Node Type': string;
  'Relation Name'?: string;
  'Actual Rows'?: number;
  'Actual Loops'?: number;
  'Rows Removed by Filter'?: number;
  'Rows Removed by Index Recheck'?: number;
  Plans?: PlanNode[];
}

interface LogLine {
  application_name?: string;
  message?: string;
}

const AGENT = 'branchgate-agent';
const EXPLAINED = /^duration: [\d.]+ ms {2}plan:\n/;
const SETTINGS = [
  "session_preload_libraries = 'auto_explain'",
  'auto_explain.log_min_duration = 0',
  'auto_explain.log_analyze = on',
  'auto_explain.log_timing = off',
  'auto_explain.log_format = json',
  'auto_explain.log_nested_statements = on',
];
/** Ids, and names that were made from them or at random. */
const NAMES = /[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|_br_[0-9a-f]{8}/g;

/** The statements of the agent with the rows of tables that each has read, as PostgreSQL's log has them. */
export class ExplainedStatements {
  readonly #servers: TestHost;
  readonly #folder: string;

  /** Concerns sessions that open later. */
  static async begin(servers: TestHost): Promise<ExplainedStatements> {
    for (const setting of SETTINGS) await servers.query(`ALTER ROLE branchgate SET ${setting}`);
    return new ExplainedStatements(servers);
  }

  private constructor(servers: TestHost) {
    this.#servers = servers;
    this.#folder = join(servers.settings.PGDATA_DIR, 'log');
  }

  /** @returns the rows that each statement has read at most at once, by its text without names */
  async during(action: () => Promise<unknown>): Promise<Map<string, number>> {
    const from = await this.#mark();
    await action();
    const to = await this.#mark();
    const lines = this.#read();
    const [first, last] = [from, to].map((mark) => lines.findIndex(({ message }) => message?.includes(mark)));
    const found = new Map<string, number>();
    for (const { application_name, message = '' } of lines.slice(first, last)) {
      if (application_name !== AGENT || !EXPLAINED.test(message)) continue;
      const explained = JSON.parse(message.replace(EXPLAINED, '')) as {
        'Query Text': string;
        Plan: PlanNode;
      };
      const text = explained['Query Text'].replaceAll(NAMES, '…');
      found.set(text, Math.max(found.get(text) ?? 0, rowsOf(explained.Plan)));
    }
    return found;
  }

  /** Writes a line to the log, and waits for it. @returns what it contains */
  async #mark(): Promise<string> {
    const mark = `mark ${randomUUID()}`;
    await this.#servers.query(`DO $$ BEGIN RAISE LOG '${mark}'; END $$`);
    await eventually(async () => {
      if (!this.#read().some(({ message }) => message?.includes(mark))) throw new Error('the log is late');
    });
    return mark;
  }

  /** The newest two files: one may have begun meanwhile. */
  #read(): LogLine[] {
    return readdirSync(this.#folder)
      .filter((name) => name.endsWith('.json'))
      .sort()
      .slice(-2)
      .flatMap((name) =>
        readFileSync(join(this.#folder, name), 'utf8')
          .split('\n')
          .filter((line) => line.endsWith('}'))
          .map((line) => JSON.parse(line) as LogLine),
      );
  }
}

/** Rows of tables that the plan's scans have looked at. */
function rowsOf(node: PlanNode): number {
  const { Plans = [] } = node;
  const each =
    (node['Actual Rows'] ?? 0) +
    (node['Rows Removed by Filter'] ?? 0) +
    (node['Rows Removed by Index Recheck'] ?? 0);
  const isScan = node['Relation Name'] !== undefined && node['Node Type'] !== 'ModifyTable';
  const own = isScan ? each * (node['Actual Loops'] ?? 0) : 0;
  return Math.round(own) + Plans.reduce((sum, plan) => sum + rowsOf(plan), 0);
}
