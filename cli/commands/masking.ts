import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { constantFor } from '../../shared/masking-names.ts';
import { CommandError, EXIT_CODES } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { checkMasking, checkSentence, readPolicy, uncoveredLines } from '../masking-policy.ts';
import { readCount } from '../option-values.ts';
import { isJson, printRecord, printRecords, printSections, say } from '../output.ts';
import { branchPath, openSession, projectOf } from '../session.ts';

const MASKING = '/api/v1/projects/{project_id}/masking';
const FIELDS = ['version', 'unlisted', 'changed_by', 'changed_at', 'etag'];

const SUGGESTION = ['table', 'column', 'type', 'with', 'reason'];
const TABLE = '<table>';

function printPolicy(command: Command, policy: Schemas['MaskingPolicy']): void {
  const rules = { title: 'Rules', records: policy.rules, columns: ['table', 'column', 'with', 'args'] };
  printSections(command, policy, FIELDS, [rules]);
}

const get = () =>
  new Command('get')
    .description('Show the masking policy of a project')
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const policy = await dataOf(session.client.api.GET(MASKING, { params: { path } }));
      printPolicy(command, policy);
      for (const line of uncoveredLines({ problems: policy.problems ?? [] })) say(`Not covered: ${line}`);
    });

const suggest = () =>
  new Command('suggest')
    .description('List the columns of main that look personal and have no rule')
    .option('--add', 'add a rule for each to the policy')
    .action(async ({ add }: { add?: true }, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const { suggestions, rules, unlisted, etag } = await dataOf(
        session.client.api.GET(MASKING, { params: { path } }),
      );
      if (suggestions === null)
        throw new CommandError('failed', 'main cannot be read now. Repeat the command later.');
      printRecords(command, suggestions, SUGGESTION);
      if (!add || suggestions.length === 0) return;
      const added = suggestions.map(({ table, column, type, with: name }) => ({
        table,
        column,
        with: name,
        ...argsOf(name, type),
      }));
      const body = { rules: [...rules, ...(added as typeof rules)], unlisted };
      const params = { path, header: { 'if-match': etag } };
      const policy = await dataOf(session.client.api.PUT(MASKING, { params, body }));
      say(`The masking policy has version ${policy.version}.`);
    });

/** Of a function that cannot do without. */
const argsOf = (name: string, type: string) =>
  name === 'constant' ? { args: { value: constantFor(type) } } : {};

const preview = () =>
  new Command('preview')
    .description('Show rows of main before and after masking')
    .argument(TABLE, 'with its schema, unless that is public')
    .option('--limit <n>', 'number of rows, up to 20', readCount, 5)
    .option('-f, --file <file>', 'try the rules of this file instead of the policy; `-` reads standard input')
    .action(async (table: string, { limit, file }: { limit: number; file?: string }, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const rules = file === undefined ? {} : { rules: (await readPolicy(file)).rules };
      const body = { table, limit, ...rules };
      const shown = await dataOf(session.client.api.POST(`${MASKING}/preview`, { params: { path }, body }));
      const names = shown.columns.map(({ name }) => name);
      const asRow = (values: (string | null)[], side: string) => ({
        '': side,
        ...Object.fromEntries(names.map((name, n) => [name, values[n] ?? null])),
      });
      const records = shown.rows.flatMap(({ before, after }) => [
        asRow(before, 'before'),
        asRow(after, 'after'),
      ]);
      for (const { column, reason } of shown.problems) say(`${column ?? table} stays as it is: ${reason}`);
      printRecords(command, records, ['', ...names]);
    });

const check = () =>
  new Command('check')
    .description('Compare the masking policy with a branch, for instance after a migration')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .option('-f, --file <file>', 'compare this file instead of the policy; `-` reads standard input')
    .addHelpText(
      'after',
      `
A column that looks personal and has no rule is a problem, unless the policy has "unlisted": "keep". Exit code
${EXIT_CODES.conflict.code} reports that the policy does not cover the branch.`,
    )
    .action(async (branch: string | undefined, { file }: { file?: string }, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const checked = await checkMasking(session.client, path, file ?? null);
      if (isJson(command)) printRecord(command, checked);
      else printRecords(command, checked.problems, ['table', 'column', 'reason']);
      say(checkSentence(checked));
      if (!checked.covered) exitWith(EXIT_CODES.conflict.code);
    });

interface Setting {
  file: string;
  ifMatch?: string;
}

const set = () =>
  new Command('set')
    .description('Replace the masking policy of a project by that of a file')
    .requiredOption('-f, --file <file>', 'JSON with `rules` and `unlisted`; `-` reads standard input')
    .option('--if-match <etag>', 'only if the policy is still the one with this etag')
    .action(async ({ file, ifMatch }: Setting, command: Command) => {
      const body = await readPolicy(file);
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const header = ifMatch === undefined ? {} : { 'if-match': ifMatch };
      const policy = await dataOf(session.client.api.PUT(MASKING, { params: { path, header }, body }));
      say(`The masking policy has version ${policy.version}.`);
      printPolicy(command, policy);
    });

export const maskingCommand = (): Command =>
  [get(), set(), suggest(), preview(), check()].reduce(
    (group, command) => group.addCommand(command),
    new Command('masking').description('The masking policy: how values are replaced in masked data'),
  );
