import { DatabaseSync } from 'node:sqlite';
import type { ActorRun } from './actor-run.ts';
import type { ModelProject, Tally } from './model.ts';

/** Job failures that a fault may cause. Every other job is retried until it succeeds. */
const PERMITTED_FAILURES = ['SOURCE_BUSY', 'SOURCE_MISSING', 'OVERTAKEN', 'HOST_FULL'];
/** Failures of moves while PostgreSQL is killed: whether a branch was written that could only be read is not known then. */
const OF_CRASH = ['SOURCE_UNSUITABLE'];
/** Of a move whose project was deleted. */
const OF_DELETION = ['JOB_CANCELLED'];

const CREATIONS = "('project.create', 'branch.create')";
/** Jobs that make a database, and how many: the newest snapshot of `main` is copied once. */
const CLONES = `(kind in ${CREATIONS} or kind in ('snapshot.create', 'branch.reset', 'branch.restore'))`;
/** The branches of a job, as a JSON array. */
const BRANCH_IDS = "coalesce(json_extract(input, '$.branchIds'), json_array(branch_id))";

/** Tables with a project's rows: the column with its id, and the column that names a row in a report. */
const TENANT_TABLES = {
  projects: { key: 'id', name: 'id' },
  project_branches: { key: 'project_id', name: 'branch_name' },
  network_rules: { key: 'project_id', name: 'cidr' },
  snapshots: { key: 'project_id', name: 'id' },
  jobs: { key: 'project_id', name: 'kind' },
  audit_events: { key: 'project_id', name: 'name' },
};

interface JobFailure {
  kind: string;
  project_id: string;
  code: string | null;
  message: string | null;
}

/** Checks what a schedule left in the gateway's D1, beyond the records in a snapshot. */
export class Trail {
  readonly #d1File: string;
  readonly #since: number;

  /** @param since ignores earlier rows, Unix milliseconds */
  constructor(d1File: string, since: number) {
    this.#d1File = d1File;
    this.#since = since;
  }

  /** How many databases were wanted. */
  creations(): number {
    const sql = `select coalesce(sum(iif(kind = 'snapshot.create', 2, json_array_length(${BRANCH_IDS}))), 0) as count from jobs
      where ${CLONES} and created_at >= ?`;
    return this.#all<{ count: number }>(sql, this.#since)[0]?.count ?? 0;
  }

  /** Ids of the jobs of running creations. */
  openCreations(): Set<string> {
    const sql = `select id from jobs where ${CLONES} and status in ('queued', 'running')`;
    return new Set(this.#all<{ id: string }>(sql).map(({ id }) => id));
  }

  /** Moves of projects: those that were begun, and those that have succeeded. */
  moves(): { begun: number; succeeded: number } {
    const sql = "select status from jobs where kind = 'project.move' and created_at >= ?";
    const moves = this.#all<{ status: string }>(sql, this.#since);
    return { begun: moves.length, succeeded: moves.filter(({ status }) => status === 'succeeded').length };
  }

  /** Whether a snapshot was wanted, of which the agent makes a copy. */
  hasSnapshots(): boolean {
    const sql = "select 1 from jobs where kind = 'snapshot.create' and created_at >= ? limit 1";
    return this.#all(sql, this.#since).length > 0;
  }

  /**
   * Jobs that failed for a reason that is not permitted.
   * @param hasCrashed whether PostgreSQL was killed
   */
  failures(hasCrashed: boolean): string[] {
    const ofMoves = [...(hasCrashed ? OF_CRASH : []), ...OF_DELETION];
    const sql = `select kind, project_id, error ->> '$.code' as code, error ->> '$.message' as message from jobs
      where status = 'failed' and created_at >= ?`;
    return this.#all<JobFailure>(sql, this.#since)
      .filter(
        ({ kind, code }) =>
          !PERMITTED_FAILURES.includes(code ?? '') &&
          !(kind === 'project.move' && ofMoves.includes(code ?? '')),
      )
      .map(
        ({ kind, project_id, code, message }) =>
          `${kind} of project ${project_id} failed: ${code} ${message}`,
      );
  }

  /** Ids of projects and branches whose creation failed permanently; their records stay as `failed`. */
  permanentlyFailed(): Set<string> {
    const sql = `select kind, project_id, ${BRANCH_IDS} as branch_ids from jobs where kind in ${CREATIONS}
      and status = 'failed' and json_extract(error, '$.code') in ('HOST_FULL', 'SOURCE_MISSING')`;
    const failed = this.#all<{ kind: string; project_id: string; branch_ids: string }>(sql);
    return new Set(
      failed.flatMap(({ kind, project_id, branch_ids }) => [
        ...(kind === 'project.create' ? [project_id] : []),
        ...(JSON.parse(branch_ids) as string[]),
      ]),
    );
  }

  /** Counts one user's events, and checks that all rows of the user moved with it to its tenant. */
  check(run: ActorRun): void {
    for (const project of run.model.projects.values()) {
      if (!project.id) continue;
      this.#checkTenant(run, project.id);
      this.#checkRules(run, project);
      this.#checkMoves(run, project);
      for (const [name, branch] of project.branches) {
        if (!branch.id) continue;
        const counts: [string, Tally][] = [
          ['branch.credentials.rotated', branch.rotations],
          ['branch.lifespan.changed', branch.lifespanChanges],
          ['branch.credentials.viewed', branch.views],
          ['branch.purged', { least: branch.wasPurged ? 1 : 0, most: 1 }],
        ];
        for (const [event, { least, most }] of counts) {
          const found = this.#count(event, branch.id);
          if (found < least || found > most)
            run.report(`audit: ${found} ${event} of ${name}, ${least} to ${most} were expected`);
        }
      }
    }
  }

  #checkTenant(run: ActorRun, projectId: string): void {
    const { tenant } = run.model;
    for (const [table, { key, name }] of Object.entries(TENANT_TABLES)) {
      const sql = `select ${name} as name from ${table} where ${key} = ? and tenant_id <> ?`;
      for (const row of this.#all<{ name: string }>(sql, projectId, tenant))
        run.report(`${row.name} of ${table} stayed in the former tenant`);
    }
  }

  #checkMoves(run: ActorRun, { id, moves: { least, most } }: ModelProject): void {
    const sql = "select count(*) as count from audit_events where name = 'project.moved' and project_id = ?";
    const count = this.#all<{ count: number }>(sql, id)[0]?.count ?? 0;
    if (count < least || count > most)
      run.report(`audit: ${count} project.moved of ${id}, ${least} to ${most} were expected`);
  }

  /** Checks that each rule has one event for its creation, and one for its deletion, if it was deleted. */
  #checkRules(run: ActorRun, project: ModelProject): void {
    const sql = `select name, json_extract(metadata, '$.rule_id') as rule from audit_events
      where project_id = ? and name like 'network_rule.%'`;
    const events = this.#all<{ name: string; rule: string }>(sql, project.id);
    const count = (name: string, id: string) =>
      events.filter((event) => event.name === `network_rule.${name}` && event.rule === id).length;
    for (const { rule } of events)
      for (const name of ['created', 'deleted'])
        if (count(name, rule) > 1) run.report(`audit: network_rule.${name} of ${rule} is duplicated`);
    for (const { id, existence } of project.rules.values()) {
      if (!id) continue;
      if (count('created', id) !== 1) run.report(`audit: network_rule.created of ${id} is missing`);
      if (existence === 'gone' && count('deleted', id) !== 1)
        run.report(`audit: network_rule.deleted of ${id} is missing`);
      if (existence === 'there' && count('deleted', id) > 0)
        run.report(`audit: network_rule.deleted of ${id}, which exists`);
    }
  }

  #count(name: string, branchId: string): number {
    const sql = 'select count(*) as count from audit_events where name = ? and branch_id = ?';
    const [row] = this.#all<{ count: number }>(sql, name, branchId);
    return row?.count ?? 0;
  }

  #all<Row>(sql: string, ...values: (string | number)[]): Row[] {
    const database = new DatabaseSync(this.#d1File, { readOnly: true, timeout: 5000 });
    try {
      return database.prepare(sql).all(...values) as Row[];
    } finally {
      database.close();
    }
  }
}
