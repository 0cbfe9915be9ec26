import { statSync } from 'node:fs';
import { join } from 'node:path';
import { countFiles } from '../postgres/file-bytes.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { BranchDirectory } from './branch-directory.ts';
import type { Finding, Guard, GuardedBranch, Observation } from './guard.ts';

const CHECK_EVERY_MS = 2_000;

interface Counted {
  branch: GuardedBranch;
  /** Time of the last change of the database's folder, in milliseconds. */
  changedAt: number;
  files: number;
  /** Since the count before. */
  grown: boolean;
  /** How fast it has grown lately, in files a second between two counts. */
  growths: readonly { at: number; perSecond: number }[];
}

/** A branch that has made files lately, and how fast at most. */
export interface FileGrowth {
  branch: GuardedBranch;
  filesPerSecond: number;
}

/** A burst may be over before it has consequences: the volume is short then, and nothing grows any more. */
const LATELY_MS = 60_000;

/**
 * Files of each project, which tables and indexes have. Every checkpoint and clone handles each file, so many
 * small tables delay other tenants although they take little space. A branch that makes more is blocked while
 * its project has too many; it can drop some.
 */
export class ProjectFiles implements Guard {
  readonly name = 'files';
  readonly reason = 'files';
  readonly #dataDir: string;
  readonly #directory: Pick<BranchDirectory, 'all'>;
  readonly #limit: number;
  readonly #troubles: TroubleLog;
  /** By the database's oid. */
  #counted = new Map<string, Counted>();
  #countedAt = 0;
  #checkAt = 0;
  /** Whether a count is under way. */
  isCounting = false;
  #due: Finding[] = [];

  constructor(dataDir: string, directory: Pick<BranchDirectory, 'all'>, log: Log, limit: number) {
    this.#dataDir = dataDir;
    this.#directory = directory;
    this.#limit = limit;
    this.#troubles = new TroubleLog(log);
  }

  /** Each growth counts once: its branch may have been blocked since. */
  takeGrowth(): FileGrowth[] {
    return [...this.#counted.values()].flatMap((counted) => {
      const { branch, growths } = counted;
      counted.growths = [];
      return growths.length > 0
        ? [{ branch, filesPerSecond: Math.max(...growths.map(({ perSecond }) => perSecond)) }]
        : [];
    });
  }

  check({ at }: Observation): Finding[] {
    if (at >= this.#checkAt && !this.isCounting) {
      this.#checkAt = at + CHECK_EVERY_MS;
      this.isCounting = true;
      this.#count(at)
        .then(
          () => this.#troubles.clearAll(),
          (error) => this.#troubles.report('guard.failed', 'files', error, { what: 'files' }),
        )
        .finally(() => {
          this.isCounting = false;
        });
    }
    const due = this.#due;
    this.#due = [];
    return due;
  }

  /** Not awaited: the folder of a database with many files takes long. Unchanged folders are not read again. */
  async #count(at: number): Promise<void> {
    const counted = new Map<string, Counted>();
    for (const [oid, branch] of this.#directory.all()) {
      const changedAt =
        statSync(join(this.#dataDir, 'base', oid), { throwIfNoEntry: false })?.mtimeMs ?? null;
      if (changedAt === null) continue;
      const before = this.#counted.get(oid);
      const files = before?.changedAt === changedAt ? before.files : await countFiles(this.#dataDir, oid);
      const made = before === undefined ? 0 : files - before.files;
      const perSecond = (made * 1_000) / (at - this.#countedAt);
      const lately = before?.growths.filter((growth) => at - growth.at < LATELY_MS) ?? [];
      const growths = made > 0 ? [...lately, { at, perSecond }] : lately;
      counted.set(oid, { branch, changedAt, files, grown: made > 0, growths });
    }
    this.#countedAt = at;
    this.#counted = counted;
    const projects = Map.groupBy(counted.values(), ({ branch }) => branch.project_id);
    this.#due = [...projects.values()].flatMap((own) => {
      const files = own.reduce((sum, one) => sum + one.files, 0);
      const branches = own.filter(({ grown }) => grown).map(({ branch }) => branch);
      return files > this.#limit && branches.length > 0
        ? [{ sessions: [], branches, detail: { files } }]
        : [];
    });
  }
}
