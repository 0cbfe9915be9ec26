import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { FROM_LOOPBACK } from '../support/api.ts';
import { connect } from '../support/database.ts';
import type { ActorRun } from './actor-run.ts';
import type { ModelBranch, ModelProject } from './model.ts';
import { findBranch, type OperationHandler } from './operation-handler.ts';
import { MAIN, type Operation } from './schedule.ts';

export const TABLE = 'book';
const CONNECTS_WITHIN_MS = 3_000;
const RESPONDS_WITHIN_MS = 5_000;
const RETRY_EVERY_MS = 100;

/** The outcome of one statement. `refused`: it was never sent. */
type StatementOutcome = 'done' | 'doubtful' | 'refused';

async function runStatement(url: string, sql: string, values: unknown[] = []): Promise<StatementOutcome> {
  let client: pg.Client;
  try {
    client = await connect(url, {
      connectionTimeoutMillis: CONNECTS_WITHIN_MS,
      query_timeout: RESPONDS_WITHIN_MS,
    });
  } catch {
    return 'refused';
  }
  try {
    await client.query(sql, values);
    return 'done';
  } catch {
    return 'doubtful';
  } finally {
    // Not awaited, because a frozen server does not respond.
    client.end().catch(() => {});
  }
}

/** Runs an idempotent statement once, or until it succeeds. @returns whether it succeeded or may have */
async function runIdempotent(
  run: ActorRun,
  operation: Operation,
  { owner, branch }: { owner: ModelProject; branch: ModelBranch },
  port: 'database_url' | 'direct_url',
  sql: string,
  values: unknown[] = [],
): Promise<{ done: boolean; doubtful: boolean }> {
  let doubtful = false;
  for (;;) {
    const credentials = await run.credentials(owner, branch);
    const outcome = credentials ? await runStatement(credentials[port], sql, values) : 'refused';
    if (outcome === 'done') return { done: true, doubtful };
    if (outcome === 'doubtful') doubtful = true;
    // A rotation without a response may have taken effect by now.
    else branch.credentials = null;
    if (!operation.persists) return { done: false, doubtful };
    if (run.context.signal.aborted) {
      run.report(`${operation.kind}: not completed in time`);
      return { done: false, doubtful };
    }
    await sleep(RETRY_EVERY_MS);
  }
}

export const makeTable: OperationHandler<'make_table'> = async (run, operation) => {
  const found = findBranch(run, { project: operation.project, branch: MAIN });
  if (!found) return;
  const sql = `create table if not exists ${TABLE} (id int primary key, title text)`;
  const { done } = await runIdempotent(run, operation, found, 'direct_url', sql);
  found.owner.hasTable = done;
};

export const writeBySql: OperationHandler<'write_by_sql'> = async (run, operation) => {
  const found = findBranch(run, operation);
  if (!found?.owner.hasTable) return;
  const { branch } = found;
  const { row, value } = operation;
  branch.row(row).ask(value);
  const port = row % 2 === 0 ? 'direct_url' : 'database_url';
  const sql = `insert into ${TABLE} (id, title) values ($1, $2) on conflict (id) do update set title = $2`;
  branch.row(row).learn(value, await runIdempotent(run, operation, found, port, sql, [row, value]));
};

const rowsPath = (projectId: string, branchId: string) =>
  `/api/v1/projects/${projectId}/branches/${branchId}/tables/${TABLE}/rows`;

export const writeByApi: OperationHandler<'write_by_api'> = async (run, operation, concurrent) => {
  const found = findBranch(run, operation);
  if (!found?.owner.hasTable) return;
  const { api } = run.model;
  const { owner, branch } = found;
  const { row, value } = operation;
  const permitted = branch.row(row).possible.has(null) ? ['ROW_NOT_FOUND'] : [];
  branch.row(row).ask(value);
  const body = { primary_key: 'id', id: row, column: 'title', value };
  const outcome = await run.sendOnce(operation, () => api.patch(rowsPath(owner.id, branch.id), body));
  const done = run.responsesWithStatus(operation, [outcome], 200, { ...concurrent, permitted }).length > 0;
  branch.row(row).learn(value, { done, doubtful: outcome.doubtful });
};

export const deleteByApi: OperationHandler<'delete_by_api'> = async (run, operation, concurrent) => {
  const found = findBranch(run, operation);
  if (!found?.owner.hasTable) return;
  const { api } = run.model;
  const { owner, branch } = found;
  branch.row(operation.row).ask(null);
  const body = { primary_key: 'id', ids: [operation.row] };
  const outcome = await run.sendOnce(operation, () =>
    api.call('DELETE', rowsPath(owner.id, branch.id), { body, headers: FROM_LOOPBACK }),
  );
  const done = run.responsesWithStatus(operation, [outcome], 200, concurrent).length > 0;
  branch.row(operation.row).learn(null, { done, doubtful: outcome.doubtful });
};
