import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { differenceOf } from '../../client/difference.ts';
import { dataOf } from '../../client/response-error.ts';
import { schemaProof, schemaScript } from '../../shared/schema-proof.ts';
import { CommandError } from '../exit-codes.ts';
import { isJson, printRecord, printRecords, printText, say } from '../output.ts';
import { branchPath, openSession, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';

const DIFF = '/api/v1/projects/{project_id}/branches/{branch_ref}/diff';
const ROWS = `${DIFF}/rows` as const;

type Difference = Schemas['Difference'];
type Change = Schemas['RowDifferencePage']['rows'][number];
type Path = Awaited<ReturnType<typeof branchPath>>;

interface DiffOptions {
  against: string;
  schema?: true;
  statements?: true;
  rows?: string;
  cancel?: true;
}

/** Prints the differences of rows and schemas. @param statements prints only those that bring the other side to the schema */
export function printDifference(
  command: Command,
  difference: Omit<Difference, 'against'>,
  { statements = false }: { statements?: boolean } = {},
): void {
  if (isJson(command)) {
    printRecord(command, difference);
    return;
  }
  const { rows, schema } = difference;
  const script = schemaScript(schema?.statements ?? []);
  const isEqual = [rows?.tables, rows?.not_compared, schema?.changes].every((found) => !found?.length);
  if (isEqual) say('Nothing differs.');
  else if (!statements)
    printRecords(command, rows?.tables ?? [], ['schema', 'name', 'inserted', 'updated', 'deleted', 'method']);
  for (const { schema: of, name, reason, detail } of rows?.not_compared ?? [])
    say(`${of}.${name} was not compared: ${[reason, detail].filter(Boolean).join(', ')}`);
  if (rows?.has_more) say('More tables differ than fit into one response.');
  if (!schema) return;
  if (!isEqual && !statements)
    printRecords(command, schema.changes, ['change', 'kind', 'identity', 'detail']);
  if (script) printText(`${statements ? '' : '\n'}${script}\n`);
  for (const sentence of schema.not_modelled) say(sentence);
  if (!isEqual) say(schemaProof(schema.unproven_reason));
}

/** The columns of a row whose values differ; of a row on one side all of them. */
function shownOf({ change, before, after }: Change, key: readonly string[]) {
  const row = after ?? before ?? {};
  const differs = (column: string) => !before || !after || before[column] !== after[column];
  const only = (side: Change['before']) =>
    side && Object.fromEntries(Object.entries(side).filter(([column]) => differs(column)));
  return {
    change,
    key: Object.fromEntries(key.map((column) => [column, row[column]])),
    before: only(before),
    after: only(after),
  };
}

async function printChangedRows(command: Command, session: Session, path: Path, options: DiffOptions) {
  const [, schema = 'public', table = ''] = /^(?:([^.]+)\.)?(.+)$/.exec(options.rows ?? '') ?? [];
  const changes: (Change | ReturnType<typeof shownOf>)[] = [];
  let cursor: string | null = null;
  do {
    const query = { against: options.against, schema, table, ...(cursor !== null && { cursor }) };
    const page: Schemas['RowDifferencePage'] = await dataOf(
      session.client.api.GET(ROWS, { params: { path, query } }),
    );
    const shown = (change: Change) => (isJson(command) ? change : shownOf(change, page.primary_key));
    changes.push(...page.rows.map(shown));
    cursor = page.next_cursor;
  } while (cursor !== null);
  if (changes.length === 0 && !isJson(command)) say('Nothing differs.');
  else printRecords(command, changes, ['change', 'key', 'before', 'after']);
}

export const branchDiff = (): Command =>
  new Command('diff')
    .description('Compare a branch with its parent, another branch or a snapshot')
    .argument('[branch]', 'name or ID (default: the pinned branch)')
    .option('--against <reference>', 'parent, a branch by name or ID, or the ID of a snapshot', 'parent')
    .option('--schema', 'compare the schemas too, and print statements for what differs')
    .option('--statements', 'print only the statements that bring the other side to the schema of the branch')
    .option('--rows <table>', 'list the rows of this table that differ, as [schema.]table')
    .option('--cancel', 'end the comparison that is under way')
    .action(async (branch: string | undefined, options: DiffOptions, command: Command) => {
      if (options.rows !== undefined && (options.schema || options.statements))
        throw new CommandError('usage', '--rows excludes --schema and --statements.');
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      if (options.cancel)
        return printRecord(command, await dataOf(session.client.api.DELETE(DIFF, { params: { path } })));
      if (options.rows !== undefined) return printChangedRows(command, session, path, options);
      const compared = await withProgress('Comparing', (onProgress) =>
        differenceOf(
          session.client,
          path,
          { against: options.against, schema: options.schema ?? options.statements ?? false },
          { onProgress },
        ),
      );
      printDifference(command, compared, options);
    });
