import { readFileSync } from 'node:fs';
import { setOutput } from '@actions/core';
import { type Change, endOfChange } from '../client/changes.ts';
import type { BranchgateClient, Schemas } from '../client/client.ts';
import { dataOf } from '../client/response-error.ts';
import { forecastText } from '../shared/forecast-text.ts';
import { ActionError, type Inputs } from './inputs.ts';
import { info } from './log.ts';
import { codeBlock, folded } from './markdown.ts';

/** The change of `main` of a pull request: proposed while the pull request is open, and applied after its merge. */

const CHANGES = '/api/v1/projects/{project_id}/changes';
const CHANGE = `${CHANGES}/{change_id}` as const;
/** Characters of the statements; a comment has at most 65,536. */
const STATEMENTS_MAX = 20_000;

type Summary = Schemas['ChangeSummary'];

const OPEN: readonly Summary['state'][] = [
  'planned',
  'rehearsed',
  'approved',
  'scheduled',
  'stopped',
  'failed',
];

/** The open changes that were made from the branch, the newest first. */
async function openChanges(client: BranchgateClient, { project, branch }: Inputs): Promise<Summary[]> {
  const found: Summary[] = [];
  for await (const change of client.all(CHANGES, { params: { path: { project_id: project } } }))
    if (change.source?.branch_name === branch && OPEN.includes(change.state)) found.push(change);
  return found;
}

const close = async (client: BranchgateClient, project_id: string, change_id: string) => {
  await dataOf(client.api.DELETE(CHANGE, { params: { path: { project_id, change_id } } }));
};

/**
 * Plans and rehearses the change. One with the same plan is kept, with its approvals; others of the branch are closed.
 * @throws ActionError for a file that cannot be read
 */
export async function proposeChange(client: BranchgateClient, inputs: Inputs): Promise<Change> {
  const { project, branch, sqlFile } = inputs;
  const known = await openChanges(client, inputs);
  const sql = sqlFile === null ? undefined : readSql(sqlFile);
  const path = { project_id: project };
  const body = { from: branch, ...(sql !== undefined && { sql }) };
  const made = await dataOf(client.api.POST(CHANGES, { params: { path }, body }));
  const same = known.find(({ digest }) => digest === made.digest);
  const change = same ?? made;
  for (const { id } of [...known, made]) if (id !== change.id) await close(client, project, id);
  const params = { path: { ...path, change_id: change.id } };
  const begun = await dataOf(client.api.POST(`${CHANGE}/rehearse`, { params }));
  const rehearsed = await endOfChange(client, begun);
  setOutput('change-id', rehearsed.id);
  setOutput('verdict', rehearsed.rehearsal?.error ? 'failed' : (rehearsed.rehearsal?.verdict ?? ''));
  for (const line of linesOf(rehearsed)) info(line);
  return rehearsed;
}

function readSql(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    throw new ActionError(`sql names ${file}, which cannot be read. Give a file of the repository.`);
  }
}

/** Applies the change, or closes it if the pull request was not merged. @returns null if there is none */
export async function applyChange(client: BranchgateClient, inputs: Inputs): Promise<Change | null> {
  const { project } = inputs;
  const [change] = await openChanges(client, inputs);
  if (!change) {
    info(`There is no open change of ${inputs.branch}.`);
    return null;
  }
  const params = { path: { project_id: project, change_id: change.id } };
  if (inputs.isUnmerged) {
    info('The pull request was not merged, so its change is closed.');
    return dataOf(client.api.DELETE(CHANGE, { params }));
  }
  const body = { confirm: 'main' as const };
  const begun = await dataOf(client.api.POST(`${CHANGE}/apply`, { params, body }));
  const applied = await endOfChange(client, begun);
  setOutput('change-id', applied.id);
  return applied;
}

/** Why the step fails; null if it does not. */
export function failureOfChange({ state, rehearsal, application }: Change): string | null {
  if (state === 'planned' && rehearsal?.error)
    return 'A statement of the change failed: see the report above.';
  if (state === 'rehearsed' || state === 'approved')
    return rehearsal?.verdict === 'danger' ? 'The rehearsal of the change found a danger.' : null;
  if (state === 'applied' || state === 'closed') return null;
  return `The change is ${state.replaceAll('_', ' ')}${application?.reason ? ` (${application.reason})` : ''}.`;
}

function linesOf({ statements, main_changes, rehearsal, application }: Change): string[] {
  return [
    ...statements.map(({ position, rehearsed }) => {
      const [lock] = rehearsed?.locks ?? [];
      const took = rehearsed ? `${Math.ceil(rehearsed.duration_ms)} ms` : 'not rehearsed';
      return `statement ${position}: ${took}${lock ? `, ${lock.mode} on ${lock.schema}.${lock.name}` : ''}`;
    }),
    ...statements.flatMap(({ position, findings }) =>
      findings.map(({ message, instead }) => `statement ${position}: ${message} Safer: ${instead}.`),
    ),
    ...main_changes.map(({ kind, identity, change }) => `main has since: ${kind} ${identity} ${change}`),
    ...(rehearsal?.dangers ?? []).map(({ kind, schema, name }) => `danger: ${kind} of ${schema}.${name}`),
    ...(rehearsal?.forecast ?? []).map(forecastText),
    ...[rehearsal?.error, application?.error].flatMap((error) =>
      error ? [`statement ${error.statement} failed: ${error.message ?? error.sqlstate ?? ''}`] : [],
    ),
  ];
}

/** The part of the comment about the change. */
export function changePart(change: Change): string {
  const { state, approvals, approvals_required, statements } = change;
  const sql = statements.flatMap((statement) => `${statement.sql};`.split('\n'));
  const shown = { lines: Number.POSITIVE_INFINITY, characters: STATEMENTS_MAX };
  const counted = approvals.filter(({ counts }) => counts).length;
  return [
    '#### Change of main',
    `It is ${state.replaceAll('_', ' ')}.${approvals_required > 0 ? ` ${counted} of ${approvals_required} approvals.` : ''}`,
    codeBlock(linesOf(change), '', { lines: 100, characters: 400 }),
    sql.join('\n').length > STATEMENTS_MAX
      ? 'The statements are too long for a comment.'
      : folded('Statements of the change', codeBlock(sql, 'sql', shown)),
  ].join('\n\n');
}
