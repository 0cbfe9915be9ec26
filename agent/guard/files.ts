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
}

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

  check({ at }: Observation): Finding[] {
    if (at >= this.#checkAt && !this.isCounting) {
      this.#checkAt = at + CHECK_EVERY_MS;
      this.isCounting = true;
      this.#count()
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
  async #count(): Promise<void> {
    const counted = new Map<string, Counted>();
    for (const [oid, branch] of this.#directory.all()) {
      const changedAt =
        statSync(join(this.#dataDir, 'base', oid), { throwIfNoEntry: false })?.mtimeMs ?? null;
      if (changedAt === null) continue;
      const before = this.#counted.get(oid);
      const files = before?.changedAt === changedAt ? before.files : await countFiles(this.#dataDir, oid);
      counted.set(oid, { branch, changedAt, files, grown: before !== undefined && files > before.files });
    }
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
