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
const ANSWERS_WITHIN_MS = 5_000;
const ASK_AGAIN_EVERY_MS = 100;

/** How one statement ended. `refused`: it was never sent. */
type Fate = 'done' | 'doubtful' | 'refused';

async function runStatement(url: string, sql: string, values: unknown[] = []): Promise<Fate> {
  let client: pg.Client;
  try {
    client = await connect(url, {
      connectionTimeoutMillis: CONNECTS_WITHIN_MS,
      query_timeout: ANSWERS_WITHIN_MS,
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
    // Not waited for: a server that is frozen does not answer.
    client.end().catch(() => {});
  }
}

/** Runs a statement that may be run twice, until it is done or once. @returns whether it was, and may have been */
async function insist(
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
    const fate = credentials ? await runStatement(credentials[port], sql, values) : 'refused';
    if (fate === 'done') return { done: true, doubtful };
    if (fate === 'doubtful') doubtful = true;
    // A rotation that nobody answered may have taken effect by now.
    else branch.credentials = null;
    if (!operation.persists) return { done: false, doubtful };
    if (run.context.signal.aborted) {
      run.report(`${operation.kind}: not done in time`);
      return { done: false, doubtful };
    }
    await sleep(ASK_AGAIN_EVERY_MS);
  }
}

export const makeTable: OperationHandler<'make_table'> = async (run, operation) => {
  const place = findBranch(run, { project: operation.project, branch: MAIN });
  if (!place) return;
  const sql = `create table if not exists ${TABLE} (id int primary key, title text)`;
  const { done } = await insist(run, operation, place, 'direct_url', sql);
  place.owner.hasTable = done;
};

export const writeBySql: OperationHandler<'write_by_sql'> = async (run, operation) => {
  const place = findBranch(run, operation);
  if (!place?.owner.hasTable) return;
  const { branch } = place;
  const { row, value } = operation;
  branch.row(row).ask(value);
  const port = row % 2 === 0 ? 'direct_url' : 'database_url';
  const sql = `insert into ${TABLE} (id, title) values ($1, $2) on conflict (id) do update set title = $2`;
  branch.row(row).learn(value, await insist(run, operation, place, port, sql, [row, value]));
};

const rowsPath = (projectId: string, branchId: string) =>
  `/api/v1/projects/${projectId}/branches/${branchId}/tables/${TABLE}/rows`;

export const writeByApi: OperationHandler<'write_by_api'> = async (run, operation, beside) => {
  const place = findBranch(run, operation);
  if (!place?.owner.hasTable) return;
  const { api } = run.model;
  const { owner, branch } = place;
  const { row, value } = operation;
  const lawful = branch.row(row).possible.has(null) ? ['ROW_NOT_FOUND'] : [];
  branch.row(row).ask(value);
  const body = { primary_key: 'id', id: row, column: 'title', value };
  const outcome = await run.sendOnce(operation, () => api.patch(rowsPath(owner.id, branch.id), body));
  const done = run.responsesWithStatus(operation, [outcome], 200, { ...beside, lawful }).length > 0;
  branch.row(row).learn(value, { done, doubtful: outcome.doubtful });
};

export const deleteByApi: OperationHandler<'delete_by_api'> = async (run, operation, beside) => {
  const place = findBranch(run, operation);
  if (!place?.owner.hasTable) return;
  const { api } = run.model;
  const { owner, branch } = place;
  branch.row(operation.row).ask(null);
  const body = { primary_key: 'id', ids: [operation.row] };
  const outcome = await run.sendOnce(operation, () =>
    api.call('DELETE', rowsPath(owner.id, branch.id), { body, headers: FROM_LOOPBACK }),
  );
  const done = run.responsesWithStatus(operation, [outcome], 200, beside).length > 0;
  branch.row(operation.row).learn(null, { done, doubtful: outcome.doubtful });
};
