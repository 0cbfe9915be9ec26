import { renameSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { readBlockedBranches } from '../attempts/blocked-branches.ts';
import { showDatabases, withConsole } from '../pooler/console.ts';
import { endLogins } from '../pooler/end-logins.ts';
import type { Pool, Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { RULE_FILES } from '../servers/configuration.ts';
import { HostError } from '../servers/host-error.ts';
import { type AgentSettings, rulesFolder } from '../settings.ts';
import { databasesOf, poolerEntries, type RuleFileTexts, refusing, ruleFiles } from './rule-files.ts';
import { makeRulesFolder } from './rules-folder.ts';
import { readAccess } from './store-access.ts';

const IN_EFFECT_WITHIN_MS = 5_000;
const LOOK_EVERY_MS = 1;

const NAMES = Object.keys(RULE_FILES) as (keyof RuleFileTexts)[];
/** The files in which a branch is refused. */
const REFUSALS: typeof NAMES = ['postgresHba', 'poolerHba'];

/** Brings what the agent's tables say into the rule files, and both servers to obey them. */
export class RuleSync {
  readonly #settings: AgentSettings;
  readonly #pool: Pool;
  /** The files that both servers are known to obey. Nothing at first: a killed agent may not have told them. */
  #obeyed: RuleFileTexts | null = null;
  /** As last published, were nobody refused. */
  #open: RuleFileTexts | null = null;
  #refused: ReadonlySet<string> = new Set();
  /** Databases that the pooler does not serve for the moment. */
  readonly #withheld = new Set<string>();
  #running: Promise<void> = Promise.resolve();
  #next: Promise<void> | null = null;

  constructor(settings: AgentSettings, pool: Pool) {
    this.#settings = settings;
    this.#pool = pool;
  }

  /**
   * Resolves when both servers obey what the tables said at the time of the call, or something newer.
   * A reload stalls every pooled client for a moment, so calls that come while one runs share the next.
   * @throws HostError RULES_NOT_APPLIED, POOLER_UNAVAILABLE
   */
  publish(): Promise<void> {
    this.#next ??= this.#running
      .catch(() => {})
      .then(() => {
        this.#running = withLocks(this.#pool, ['rules'], (session) => this.#publish(session));
        this.#next = null;
        return this.#running;
      });
    return this.#next;
  }

  /**
   * Takes the databases out of the pooler, which throws their clients out, and puts them in again.
   * @throws as `publish`
   */
  async publishWithout(databases: readonly string[]): Promise<void> {
    for (const database of databases) this.#withheld.add(database);
    try {
      await this.publish();
    } finally {
      for (const database of databases) this.#withheld.delete(database);
      await this.publish();
    }
  }

  /**
   * Has both servers refuse all connections to these branches, and to no others any more, as soon as can be:
   * whoever guesses passwords goes on meanwhile. Hence from what this process published last, without a lock and
   * without looking whether they obey; the caller calls `publish` next. Not to be called side by side.
   * @throws HostError POOLER_UNAVAILABLE
   */
  async refuse(branchIds: ReadonlySet<string>): Promise<void> {
    if (branchIds.size === this.#refused.size && [...branchIds].every((id) => this.#refused.has(id))) return;
    this.#refused = branchIds;
    if (!this.#open) return;
    writeRuleFiles(rulesFolder(this.#settings), refusing(this.#open, branchIds), REFUSALS, 'now');
    await Promise.all([
      this.#pool.query('SELECT pg_reload_conf()'),
      withConsole(this.#settings, (console) => console.query('RELOAD')),
    ]);
  }

  async #publish(session: Session): Promise<void> {
    const { POSTGRES_SOCKET_DIR: socketDir, POSTGRES_PORT: port } = this.#settings;
    const branches = await readAccess(session);
    const pooled = branches.filter(({ database }) => !this.#withheld.has(database));
    const staying = new Set(pooled.map(({ database }) => database));
    const shut = (await readBlockedBranches(session)).map(({ branch_id }) => branch_id);
    const folder = rulesFolder(this.#settings);
    await makeRulesFolder(folder);
    const found = await readRuleFiles(folder);
    // Nothing is awaited before it is written, or a branch that is refused meanwhile would be let in again.
    const { postgresHba } = ruleFiles(branches, { socketDir, port });
    this.#open = { ...ruleFiles(pooled, { socketDir, port }), postgresHba };
    const wanted = refusing(this.#open, new Set([...shut, ...this.#refused]));
    // Looked up on disk too: a control tool may have written in the meantime.
    if (sameTexts(found, wanted) && this.#obeyed && sameTexts(this.#obeyed, wanted)) return;

    // Those that leave the pooler keep their entries until nobody is logging in to them.
    const leaving = databasesOf(found.poolerDatabases).filter((database) => !staying.has(database));
    const entries = [...staying, ...leaving];
    writeRuleFiles(folder, { ...wanted, poolerDatabases: poolerEntries(entries, { socketDir, port }) });
    const error = await hbaError(session);
    if (error) {
      // PostgreSQL goes on with the old rules, but would not start with these.
      writeRuleFiles(folder, found);
      throw new HostError('RULES_NOT_APPLIED', `PostgreSQL does not take the rules: ${error}`);
    }
    this.#obeyed = null;
    await Promise.all([reloadPostgres(session), reloadPooler(this.#settings, new Set(entries))]);
    if (leaving.length > 0) {
      await withConsole(this.#settings, (console) => endLogins(console, new Set(leaving)));
      writeRuleFiles(folder, wanted, ['poolerDatabases']);
      await reloadPooler(this.#settings, staying);
    }
    this.#obeyed = wanted;
  }
}

/**
 * The postmaster tells its sessions of the reload and then reads the rules, all before it takes the next login:
 * once one session knows, no new one comes in by the old rules.
 */
async function reloadPostgres(session: Session) {
  const { rows } = await session.query<{ asked: string }>(
    'SELECT clock_timestamp()::text AS asked, pg_reload_conf()',
  );
  await inEffect('PostgreSQL', async () => {
    const answer = await session.query<{ reloaded: boolean }>(
      'SELECT pg_conf_load_time() >= $1::timestamptz AS reloaded',
      [rows[0]?.asked],
    );
    return answer.rows[0]?.reloaded === true;
  });
}

/** PgBouncer answers RELOAD even when it kept its old entries, so they are compared. */
const reloadPooler = (settings: AgentSettings, databases: Set<string>) =>
  withConsole(settings, async (console) => {
    await console.query('RELOAD');
    await inEffect('PgBouncer', async () => {
      const served = await showDatabases(console);
      return served.length === databases.size && served.every(({ name }) => databases.has(name));
    });
  });

async function inEffect(server: string, obeys: () => Promise<boolean>) {
  for (
    const deadline = performance.now() + IN_EFFECT_WITHIN_MS;
    !(await obeys());
    await sleep(LOOK_EVERY_MS)
  ) {
    if (performance.now() > deadline)
      throw new HostError('RULES_NOT_APPLIED', `${server} keeps its old rules`);
  }
}

async function hbaError(session: Session): Promise<string | null> {
  const { rows } = await session.query<{ place: string }>(
    `SELECT format('%s line %s: %s', file_name, line_number, error) AS place
     FROM pg_hba_file_rules WHERE error IS NOT NULL LIMIT 1`,
  );
  return rows[0]?.place ?? null;
}

const sameTexts = (one: RuleFileTexts, other: RuleFileTexts) =>
  NAMES.every((name) => one[name] === other[name]);

async function readRuleFiles(folder: string): Promise<RuleFileTexts> {
  const [postgresHba, poolerHba, poolerDatabases, poolerUsers] = await Promise.all([
    readFile(join(folder, RULE_FILES.postgresHba), 'utf8'),
    readFile(join(folder, RULE_FILES.poolerHba), 'utf8'),
    readFile(join(folder, RULE_FILES.poolerDatabases), 'utf8'),
    readFile(join(folder, RULE_FILES.poolerUsers), 'utf8'),
  ]);
  return { postgresHba, poolerHba, poolerDatabases, poolerUsers };
}

/** @param suffix of a file until it is whole; another one for who writes without the lock */
function writeRuleFiles(folder: string, texts: RuleFileTexts, names = NAMES, suffix = 'new') {
  for (const name of names) {
    const path = join(folder, RULE_FILES[name]);
    writeFileSync(`${path}.${suffix}`, texts[name], { mode: 0o640 });
    renameSync(`${path}.${suffix}`, path);
  }
}
