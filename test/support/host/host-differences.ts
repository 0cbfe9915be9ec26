import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { compare } from '../../../agent/difference/comparison.ts';
import { countDifferences } from '../../../agent/difference/count-differences.ts';
import { withSides } from '../../../agent/difference/sides.ts';
import type { Host } from '../../../agent/host/host.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { DifferenceMethod, SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../stack/xfs.ts';
import { startHost, type TestHost } from './host.ts';
import { asClient, type Branch, BUSY_WAIT_MS, connect, Project, removeProjects } from './host-project.ts';

const DISK_BYTES = 2 * 2 ** 30;

const WITHIN_MS = 60_000;

type Against = Params<'branch.diff'>['against'];

/** The difference of two schemas alone. */
export async function schemaDifference(host: Host, before: Branch, after: Branch): Promise<SchemaDifference> {
  const { schema } = await runOperation(host, 'branch.diff', {
    project_id: after.project_id,
    branch_id: after.branch_id,
    database: after.database,
    against: { branch_id: before.branch_id, database: before.database },
    job_id: null,
    rows: false,
    schema: true,
    within: WITHIN_MS,
  });
  if (!schema) throw new Error('the comparison took too long');
  return schema;
}

/** `inserted/updated/deleted` by table. */
export type Counts = Record<string, string>;

/** A host whose databases share blocks, where this machine can mount such a disk. */
export class ComparingHost {
  readonly servers: TestHost;
  readonly project: Project;
  readonly main: Branch;
  readonly methods: readonly DifferenceMethod[];
  readonly #disk: XfsMount | null;
  #branches = 0;

  private constructor(servers: TestHost, project: Project, main: Branch, disk: XfsMount | null) {
    this.servers = servers;
    this.project = project;
    this.main = main;
    this.methods = disk ? ['wal_summary', 'extents', 'full'] : ['wal_summary', 'full'];
    this.#disk = disk;
  }

  /** @param diskBytes size of the disk, which takes only what is written */
  static async start(diskBytes = DISK_BYTES): Promise<ComparingHost> {
    const disk = xfsHindrance() === null ? mountXfs(diskBytes) : null;
    try {
      const servers = await startHost(disk ? { dataDir: join(disk.folder, 'data') } : {});
      // A file copy also where blocks cannot be shared, as for a large database: one through the WAL is all
      // new blocks.
      servers.host.cloneMethod = 'reflink';
      const project = new Project(servers.host);
      const main = await project.create('db_diff_prod', null);
      return new ComparingHost(servers, project, main, disk);
    } catch (error) {
      disk?.remove();
      throw error;
    }
  }

  /** The same host with another project, after the one before has been dropped. */
  async withNewProject(): Promise<ComparingHost> {
    await removeProjects(this.servers);
    const project = new Project(this.servers.host);
    const main = await project.create('db_diff_prod', null);
    return new ComparingHost(this.servers, project, main, this.#disk);
  }

  async stop(): Promise<void> {
    await this.servers.stop();
    this.#disk?.remove();
  }

  /** Runs SQL as the owner. */
  run = (branch: Branch, sql: string) => asClient(this.servers.host, 'direct', branch, 'owner', sql);

  /** Runs each statement as the owner, in one session. */
  async runEach(branch: Branch, statements: readonly string[]): Promise<void> {
    const owner = await connect(this.servers.host, 'direct', branch, 'owner');
    try {
      for (const statement of statements) await owner.query(statement);
    } finally {
      await owner.end();
    }
  }

  branch(from: Branch | { snapshot_id: string }): Promise<Branch> {
    const source = 'database' in from ? from.database : `bgsnap_${from.snapshot_id.replaceAll('-', '')}`;
    this.#branches += 1;
    return this.project.create(`db_diff_prod_br_${this.#branches}`, source);
  }

  async snapshot({ branch_id, database }: Branch): Promise<{ snapshot_id: string }> {
    const snapshot_id = randomUUID();
    await runOperation(this.servers.host, 'snapshot.take', {
      project_id: this.project.id,
      branch_id,
      source: database,
      snapshot_id,
      busy_wait: BUSY_WAIT_MS,
      unless_same_as: null,
    });
    return { snapshot_id };
  }

  sides({ branch_id, database }: Branch, against: Branch | { snapshot_id: string }) {
    const other: Against =
      'database' in against
        ? { branch_id: against.branch_id, database: against.database }
        : { snapshot_id: against.snapshot_id };
    return { project_id: this.project.id, branch_id, database, against: other };
  }

  /** The counts by one method alone, and the method of each table. */
  async compareBy(
    method: DifferenceMethod,
    branch: Branch,
    against: Branch | { snapshot_id: string },
    within = WITHIN_MS,
  ): Promise<{ counts: Counts; methods: Record<string, DifferenceMethod> }> {
    const { host } = this.servers;
    const rows = await withSides(host, this.sides(branch, against), within, (sides, session) =>
      compare(host, session, sides, { within, methods: [method] }, async (comparison) => {
        if (comparison.method !== method) throw new Error(`compared by ${comparison.method}, not ${method}`);
        return countDifferences(comparison);
      }),
    );
    const byName = <T>(value: (table: (typeof rows.tables)[number]) => T) =>
      Object.fromEntries(rows.tables.map((table) => [table.name, value(table)]));
    return {
      counts: {
        ...byName(({ inserted, updated, deleted }) => `${inserted}/${updated}/${deleted}`),
        ...Object.fromEntries(
          rows.not_compared.map(({ name, reason, detail }) => [name, [reason, detail].join(' ').trim()]),
        ),
      },
      methods: byName((table) => table.method),
    };
  }

  /** As the edge asks for it. */
  diff = (branch: Branch, against: Branch | { snapshot_id: string }) =>
    runOperation(this.servers.host, 'branch.diff', {
      ...this.sides(branch, against),
      job_id: null,
      rows: true,
      schema: false,
      within: WITHIN_MS,
    });

  page = (
    branch: Branch,
    against: Branch | { snapshot_id: string },
    wanted: Pick<Params<'row.diff'>, 'table'> & Partial<Params<'row.diff'>>,
  ) =>
    runOperation(this.servers.host, 'row.diff', {
      ...this.sides(branch, against),
      schema: 'public',
      limit: 50,
      after: null,
      ...wanted,
    });
}
