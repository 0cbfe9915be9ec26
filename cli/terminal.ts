import { replayed } from '../shared/format.ts';
import { printable, printableLine } from '../shared/printable.ts';
import type { ReplayProgress } from '../shared/project/job.ts';
import { CommandError } from './exit-codes.ts';

/** Whether a person can answer: prompts read standard input and write to standard error. */
export const isAttended = (): boolean =>
  process.stdin.isTTY === true && process.stderr.isTTY === true && !process.env.CI;

/** @throws CommandError that says how to do it without a person */
function requireAttended(remedy: string): void {
  if (!isAttended()) throw new CommandError('usage', `This needs an interactive terminal. ${remedy}`);
}

/** Loaded when a prompt is needed, because most commands need none. */
const prompts = () => import('@clack/prompts');

async function ask<T extends string | boolean>(
  question: (library: Awaited<ReturnType<typeof prompts>>) => Promise<T | symbol>,
): Promise<T> {
  const answer = await question(await prompts());
  if (typeof answer === 'symbol') throw new CommandError('failed', 'Cancelled.');
  return answer;
}

const output = process.stderr;

export const askPassword = (message: string): Promise<string> =>
  ask<string>((library) => library.password({ message: printable(message), output }));

interface TextOptions {
  initialValue?: string;
  /** @returns what is wrong */
  validate?: (value: string | undefined) => string | undefined;
}

export const askText = (message: string, options: TextOptions = {}): Promise<string> =>
  ask<string>((library) => library.text({ message: printable(message), output, ...options }));

/** Asks before something is destroyed. @throws CommandError without a person, unless `--yes` was given */
export async function confirm(message: string, { yes }: { yes?: boolean }): Promise<void> {
  if (yes) return;
  requireAttended('Add --yes to run without a question.');
  const isConfirmed = await ask<boolean>((library) =>
    library.confirm({ message: printable(message), initialValue: false, output }),
  );
  if (!isConfirmed) throw new CommandError('failed', 'Cancelled.');
}

/** What a job reports while it runs. */
interface Progress {
  steps: readonly {
    status: string;
    percent?: number;
    tables?: readonly { schema: string; table: string; state: string; percent: number }[];
    replay?: ReplayProgress;
  }[];
}

/** The percentage of the step that is running, with the tables that are being copied, if its host reports them. */
function progressOf({ steps }: Progress): string | undefined {
  const step = steps.find(({ percent }) => percent !== undefined);
  if (!step) return undefined;
  const copying = (step.tables ?? [])
    .filter(({ state }) => state === 'copying')
    .map(({ schema, table, percent }) => `${schema}.${table} ${percent} %`);
  return [`${step.percent} %`, ...(step.replay ? [replayed(step.replay)] : []), ...copying].join(', ');
}

/**
 * Shows progress of a wait, to a person only.
 * @param work calls its first parameter with the job that it waits for, or its second one with another text
 */
export async function withProgress<T>(
  said: string,
  work: (onProgress: (job: Progress) => void, show: (text: string) => void) => Promise<T>,
): Promise<T> {
  if (!isAttended())
    return work(
      () => {},
      () => {},
    );
  const message = printableLine(said);
  const { spinner } = await prompts();
  const shown = spinner({ output });
  shown.start(message);
  try {
    const show = (text: string) => shown.message(printableLine(`${message}: ${text}`));
    const result = await work((job) => {
      const progress = progressOf(job);
      if (progress === undefined) shown.message(message);
      else show(progress);
    }, show);
    shown.stop(message);
    return result;
  } catch (error) {
    shown.error(message);
    throw error;
  }
}
