import { Command, Option } from 'commander';
import { tryStatements } from '../../client/trial.ts';
import { BRANCH_ROLES, type BranchRole } from '../../shared/branch/login.ts';
import { CommandError, EXIT_CODES } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { collect } from '../option-values.ts';
import { isJson, printLines, printRecord } from '../output.ts';
import { branchPath, openSession } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { trialText } from '../trial-text.ts';
import { branchOption, printResult } from './tables.ts';

interface TryOptions {
  branch?: string;
  param?: string[];
  role?: BranchRole;
}

export const tryCommand = (): Command =>
  new Command('try')
    .description('Try SQL statements on a copy of a branch that nobody else sees, and report what they do')
    .argument('<sql>', 'one statement, with parameters $1, $2, …, or several without parameters')
    .option(...branchOption)
    .option('--param <value>', 'value of the next parameter; can be repeated', collect)
    .addOption(
      new Option(
        '--role <role>',
        'login that runs them; owner can change the schema (default: read_write for who may change rows)',
      ).choices(BRANCH_ROLES),
    )
    .addHelpText(
      'after',
      `
The branch is not changed, and nothing is left of the copy. main and protected branches can be tried on too.
Long locks on large tables, rewritten tables and lost rows are dangers, which exit code ${EXIT_CODES.danger.code} reports.`,
    )
    .action(async (sql: string, options: TryOptions, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, options.branch);
      const { param: params = [], role } = options;
      const report = await withProgress(`Trying on a copy of ${path.branch_ref}`, () =>
        tryStatements(session.client, path, { sql, params, role }),
      );
      if (isJson(command)) printRecord(command, report);
      else {
        for (const result of report.results) printResult(command, result);
        printLines(trialText(report));
      }
      const { outcome, error, verdict } = report;
      if (outcome === 'timed_out') throw new CommandError('timedOut', 'The statements took too long.');
      if (outcome === 'failed')
        throw new CommandError('failed', [error?.message, error?.hint].filter(Boolean).join(' '));
      if (verdict === 'danger') exitWith(EXIT_CODES.danger.code);
    });
