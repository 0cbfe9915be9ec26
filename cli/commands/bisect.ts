import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { differenceOf } from '../../client/difference.ts';
import { dataOf } from '../../client/response-error.ts';
import { refuseInherited, stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment } from '../connection.ts';
import { CommandError } from '../exit-codes.ts';
import { readPastTime } from '../option-values.ts';
import { complain, isJson, printRecord, printRecords, say } from '../output.ts';
import { openSession, projectOf, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { credentialsOf } from './connections.ts';

const PROJECT = '/api/v1/projects/{project_id}';
const BISECTION = `${PROJECT}/bisections/{bisection_id}` as const;
const BRANCHES = `${PROJECT}/branches` as const;

interface BisectOptions {
  branch: string;
  good: string;
  bad: string;
  diff?: true;
}

type Verdict = 'good' | 'bad' | 'skip';
type Probe = Schemas['BisectionProbe'];

/** Exit codes of `git bisect run`: 125 skips, and more than 127 ends the bisection. */
const SKIPPED = 125;
const ABORTS_FROM = 128;
/** The output of `psql -At` for false. */
const FALSE = 'f';

const nowOr = (text: string) => (text === 'now' ? new Date().toISOString() : readPastTime(text));

/** @param output what the check has printed, or the beginning @throws CommandError if the check has failed itself */
export function verdictOf(code: number, output: string): Verdict {
  if (code >= ABORTS_FROM) throw new CommandError('failed', `The check has ended with exit code ${code}.`);
  if (code === SKIPPED) return 'skip';
  return code === 0 && output.trim() !== FALSE ? 'good' : 'bad';
}

/** Runs the check. @throws CommandError */
async function judge(program: string, args: readonly string[], env: NodeJS.ProcessEnv): Promise<Verdict> {
  const child = spawn(program, args, { stdio: ['inherit', 'pipe', 'inherit'], env });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    complain(text);
    output = `${output}${text}`.slice(0, 100);
  });
  const code = await new Promise<number>((resolve, reject) => {
    child.once('error', () =>
      reject(new CommandError('noProgram', `${program} cannot be started. Check its path and PATH.`)),
    );
    child.once('close', (exit, signal) => resolve(exit ?? 128 + (signal ? constants.signals[signal] : 0)));
  });
  return verdictOf(code, output);
}

/** The branches next to the commit that are there: the states before and after it. */
type Kept = Partial<Record<'good' | 'bad', { at: string; name: string }>>;

class Bisecting {
  readonly #session: Session;
  readonly #command: Command;
  readonly #path: { project_id: string; bisection_id: string };
  readonly kept: Kept = {};
  probes = 0;

  constructor(session: Session, command: Command, path: { project_id: string; bisection_id: string }) {
    this.#session = session;
    this.#command = command;
    this.#path = path;
  }

  next(verdict?: Verdict): Promise<Probe> {
    const init = { params: { path: this.#path }, body: verdict === undefined ? {} : { verdict } };
    return dataOf(this.#session.client.api.POST(`${BISECTION}/probe`, init));
  }

  async try(
    { at, branch_name: name, job }: Probe,
    [program = '', ...args]: readonly string[],
    signal: AbortSignal,
  ): Promise<Verdict> {
    if (at === null || name === null || job === null) throw new Error('the probe has no branch');
    await withProgress(`Recovering ${at}`, (onProgress) =>
      this.#session.client.waitForJob(job.id, { onProgress, signal }),
    );
    this.probes += 1;
    const files = new ConnectionFiles();
    try {
      const credentials = await credentialsOf(this.#command, this.#session, name, undefined);
      const verdict = await judge(program, args, childEnvironment(credentials, files));
      say(verdict === 'skip' ? `${at} is skipped.` : `${at} is ${verdict}.`);
      await this.#delete(verdict === 'skip' ? name : this.kept[verdict]?.name);
      if (verdict !== 'skip') this.kept[verdict] = { at, name };
      return verdict;
    } catch (error) {
      await this.#delete(name);
      throw error;
    } finally {
      files.remove();
    }
  }

  /** The rows that the transaction has changed. */
  async changes({ good, bad }: { good: string; bad: string }): Promise<Schemas['Difference']> {
    const before = this.kept.good?.name ?? (await this.#branchAt(good, 'good'));
    const after = this.kept.bad?.name ?? (await this.#branchAt(bad, 'bad'));
    const path = { project_id: this.#path.project_id, branch_ref: after };
    return withProgress('Comparing', (onProgress) =>
      differenceOf(this.#session.client, path, { against: before }, { onProgress }),
    );
  }

  async #branchAt(at: string, verdict: 'good' | 'bad'): Promise<string> {
    const { project_id, bisection_id } = this.#path;
    const name = `bisect-${verdict}-${bisection_id.slice(0, 8)}`;
    const init = {
      params: { path: { project_id } },
      body: { branch_name: name, at, lease_seconds: 900, on_exists: 'fail' as const },
    };
    await withProgress(`Recovering ${at}`, () => this.#session.client.create(BRANCHES, init));
    this.kept[verdict] = { at, name };
    return name;
  }

  async #delete(name: string | undefined): Promise<void> {
    if (name === undefined) return;
    const path = { project_id: this.#path.project_id, branch_ref: name };
    const query = { purge: 'true' as const };
    await this.#session.client.api.DELETE(`${BRANCHES}/{branch_ref}`, { params: { path, query } });
  }

  async end(): Promise<void> {
    for (const { name } of Object.values(this.kept)) await this.#delete(name);
    await this.#session.client.api.DELETE(BISECTION, { params: { path: this.#path } });
  }
}

export const bisectCommand = () =>
  new Command('bisect')
    .description('Find the commit after which a check of a branch fails')
    .argument('<check...>', 'the check and its arguments, after --')
    .option('--branch <branch>', 'name or ID', 'main')
    .requiredOption('--good <time>', 'when the check passed: `6 hours ago`, or ISO 8601', nowOr)
    .requiredOption('--bad <time>', 'when it failed: `now`, or as --good', nowOr)
    .option('--diff', 'also list which rows of which tables the transaction has changed')
    .addHelpText(
      'after',
      `
The check runs with the URLs of a branch as it was at some time, as a command of exec does. Its exit codes are those of
git bisect run: 0 is good, 1 to 127 are bad, 125 skips this time, and more than 127 ends the bisection. A check that prints only f,
as psql -At does for false, is bad. Each probe is a recovery, and the bisection has an hour.`,
    )
    .action(async (check: string[], options: BisectOptions, command: Command) => {
      refuseInherited('bisect');
      const signal = stopSignal();
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const { branch, good, bad } = options;
      const started = await dataOf(
        session.client.api.POST(`${PROJECT}/bisections`, {
          params: { path: { project_id } },
          body: { branch, good, bad },
        }),
      );
      const bisecting = new Bisecting(session, command, { project_id, bisection_id: started.id });
      try {
        let probe = await bisecting.next();
        while (probe.at !== null) {
          signal.throwIfAborted();
          probe = await bisecting.next(await bisecting.try(probe, check, signal));
        }
        const { first_bad, good: before, from, until } = probe;
        if (first_bad === null)
          throw new CommandError(
            'failed',
            `The check skips every commit that is left. The first bad one is between ${from} and ${until}.`,
          );
        const changes = await bisecting.changes({ good: before, bad: first_bad });
        const tables = changes.rows?.tables ?? [];
        const found = {
          committed_at: first_bad,
          tables: tables.map(({ schema, name }) => `${schema}.${name}`),
          probes: bisecting.probes,
          ...(options.diff && { changes: tables }),
        };
        printRecord(command, found, ['committed_at', 'tables', 'probes']);
        if (options.diff && !isJson(command))
          printRecords(command, tables, ['schema', 'name', 'inserted', 'updated', 'deleted']);
      } finally {
        await bisecting.end();
      }
    });
