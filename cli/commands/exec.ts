import { Command } from 'commander';
import { type BranchData, leaseBranch } from '../../client/leased-branch.ts';
import { refuseInherited, stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment } from '../connection.ts';
import { CommandError } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { explainRefusal } from '../observed-address.ts';
import { readDuration } from '../option-values.ts';
import { ME, withOtherAddress } from '../other-address.ts';
import { say } from '../output.ts';
import { letConnect } from '../own-address.ts';
import { runChild } from '../run-child.ts';
import { findBranch, openSession, projectOf, type Session } from '../session.ts';
import { dataOption } from './branch-create.ts';
import { credentialsOf, type Role, roleOption } from './connections.ts';

interface ExecOptions {
  branch?: string;
  ephemeral?: boolean;
  from?: string;
  data?: BranchData;
  ttl?: number;
  lease?: number;
  role?: Role;
}

export const execCommand = () =>
  new Command('exec')
    .description('Run a command with the URLs of a branch in its environment')
    .argument('<command...>', 'the command and its arguments, after --')
    .option('--branch <branch>', 'name or ID (default: the pinned branch, or main)')
    .option('--ephemeral', 'create a branch for the command, and delete it afterwards')
    .option('--from <branch>', 'source of --ephemeral (default: main)')
    .addOption(dataOption())
    .addOption(roleOption())
    .option('--ttl <duration>', 'longest life of the branch of --ephemeral, for instance 10m', readDuration)
    .option(
      '--lease <duration>',
      'time until the branch of --ephemeral is deleted after a kill (default: 1m)',
      readDuration,
    )
    .addHelpText(
      'after',
      `
The command gets DATABASE_URL (pooled), DIRECT_URL, the variables of libpq, and the authority to trust.
The exit code is that of the command, or 128 plus the number of the signal that ended it.`,
    )
    .action(async ([program = '', ...args]: string[], options: ExecOptions, command: Command) => {
      refuseInherited('exec');
      if (options.ephemeral && options.branch !== undefined)
        throw new CommandError(
          'usage',
          '--ephemeral and --branch exclude each other. Give --from for the source.',
        );
      const signal = stopSignal();
      const files = new ConnectionFiles();
      try {
        const session = openSession(command);
        const { credentials, end } = await target(command, session, options, signal);
        try {
          signal.throwIfAborted();
          const code = await runChild(program, args, childEnvironment(credentials, files));
          if (code !== 0) await explainRefusal(credentials);
          exitWith(code);
        } finally {
          await end();
        }
      } finally {
        files.remove();
      }
    });

async function target(command: Command, session: Session, options: ExecOptions, signal: AbortSignal) {
  if (options.ephemeral) {
    const projectId = await projectOf(command, session);
    const source = options.from === undefined ? null : await findBranch(session, projectId, options.from);
    const leased = await leaseBranch(
      session.client,
      {
        projectId,
        sourceId: source?.id,
        data: options.data,
        ttlSeconds: options.ttl,
        leaseSeconds: options.lease,
        purpose: 'exec',
        allow: await withOtherAddress(session.url, [ME]),
      },
      { signal, say },
    );
    say(`Branch: ${leased.name}`);
    if (options.role === undefined) return leased;
    try {
      return { ...leased, credentials: await credentialsOf(command, session, leased.name, options.role) };
    } catch (error) {
      await leased.end();
      throw error;
    }
  }
  const credentials = await credentialsOf(command, session, options.branch, options.role);
  return { credentials, end: await letConnect(session, credentials) };
}
