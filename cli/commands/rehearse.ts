import { Command } from 'commander';
import type { BranchData } from '../../client/leased-branch.ts';
import { type Rehearsed, rehearse } from '../../client/rehearsal.ts';
import { refuseInherited, stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment } from '../connection.ts';
import { CommandError, EXIT_CODES } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { readCount, readDuration } from '../option-values.ts';
import { ME, withOtherAddress } from '../other-address.ts';
import { isJson, printLines, printRecord, say } from '../output.ts';
import { rehearsalText } from '../rehearsal-text.ts';
import { runChild } from '../run-child.ts';
import { findBranch, openSession, projectOf } from '../session.ts';
import { dataOption } from './branch-create.ts';

interface RehearseOptions {
  from?: string;
  data?: BranchData;
  ttl?: number;
  lockMs: number;
  tableMb: number;
}

export const rehearseCommand = () =>
  new Command('rehearse')
    .description('Run a migration on a branch that is deleted afterwards, and report what it does')
    .argument('<command...>', 'the command and its arguments, after --')
    .option('--from <branch>', 'source of the branch (default: main)')
    .addOption(dataOption())
    .option(
      '--lock-ms <n>',
      'an ACCESS EXCLUSIVE lock is a danger from this many milliseconds',
      readCount,
      1000,
    )
    .option('--table-mb <n>', '… on a table of at least this many megabytes', readCount, 100)
    .option('--ttl <duration>', 'longest life of the branch, for instance 10m', readDuration)
    .addHelpText(
      'after',
      `
The command gets DATABASE_URL (pooled) and DIRECT_URL, both of the owner's login. Its output goes to standard error.
Long locks on large tables, rewritten tables and lost rows are dangers, which exit code ${EXIT_CODES.danger.code} reports.
The load of the source is not rehearsed.`,
    )
    .action(async ([program = '', ...args]: string[], options: RehearseOptions, command: Command) => {
      refuseInherited('rehearse');
      const signal = stopSignal();
      const files = new ConnectionFiles();
      try {
        const session = openSession(command);
        const projectId = await projectOf(command, session);
        const { from, data, ttl: ttlSeconds } = options;
        const source = from === undefined ? null : await findBranch(session, projectId, from);
        const limits = { lock_ms: options.lockMs, table_bytes: options.tableMb * 1024 * 1024 };
        const { rehearsal, result: code } = await rehearse(
          session.client,
          {
            projectId,
            sourceId: source?.id,
            data,
            ttlSeconds,
            limits,
            allow: await withOtherAddress(session.url, [ME]),
          },
          {
            migrate: (credentials) => runChild(program, args, childEnvironment(credentials, files), 'stderr'),
            hasFailed: (exitCode) => exitCode !== 0,
          },
          { signal, say },
        );
        report(command, { rehearsal, result: code }, from ?? 'main');
      } finally {
        files.remove();
      }
    });

/** @throws CommandError if the command failed: what it would have done after that is not known */
function report(command: Command, { rehearsal, result: code }: Rehearsed<number>, source: string): void {
  if (isJson(command)) printRecord(command, { exit_code: code, ...rehearsal });
  else if (rehearsal.report) printLines(rehearsalText(rehearsal.report));
  const { server_version: server, source_version: former } = rehearsal;
  if (former !== null && Number.parseInt(former, 10) !== Number.parseInt(server ?? '', 10))
    say(`It ran on PostgreSQL ${server}; main comes from ${former}, whose locks and plans may differ.`);
  say(`The load of ${source} was not rehearsed: there, a lock also waits for other sessions.`);
  if (code !== 0)
    throw new CommandError(
      'failed',
      `The command ended with exit code ${code}, so the report may be incomplete.`,
    );
  if (rehearsal.report?.verdict === 'danger') exitWith(EXIT_CODES.danger.code);
}
