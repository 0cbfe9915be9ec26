import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import type { Command } from 'commander';
import { printable, printableJson, printableLine } from '../../shared/printable.ts';
import { percentOf } from '../process/progress.ts';
import { UsageError } from './exit-codes.ts';

/** Prints a result on standard output: one JSON document with `--json`, otherwise the lines of `plain`. */
export function print(command: Command, result: object, plain: string[] = describe(result)): void {
  const { json } = command.optsWithGlobals<{ json?: boolean }>();
  if (json) printJson(result);
  else printText(plain.map((line) => `${printableLine(line)}\n`).join(''));
}

/** Prints one document a line. */
export const printJson = (value: object): void => printText(`${printableJson(value)}\n`);

/** Prints text that can come from a database, as it stands. */
export const printText = (text: string): void => {
  process.stdout.write(printable(text));
};

/** A line for a person, on standard error. */
export const say = (line: string): void => {
  process.stderr.write(printable(`${line}\n`));
};

function describe(result: object): string[] {
  const entries = Object.entries(result);
  return entries.length === 0 ? ['done'] : entries.map(([key, value]) => `${key}: ${show(value)}`);
}

function show(value: unknown): string {
  if (typeof value === 'number' && !Number.isInteger(value)) return value.toFixed(1);
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Aligns columns to the width of their widest cell. */
export function table(rows: readonly (readonly string[])[]): string[] {
  const [head = []] = rows;
  const widths = head.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

/** Progress in one line that is rewritten; prints nothing unless standard error is a terminal. */
export function progressLine() {
  const { stderr } = process;
  if (!stderr.isTTY) return { update: undefined, clear: () => {} };
  return {
    update: (done: number) => {
      stderr.write(`\r\x1b[K${percentOf(done)} % done`);
    },
    clear: () => {
      stderr.write('\r\x1b[K');
    },
  };
}

export type ValueKind = 'text' | 'number' | 'json';

const PARSERS: Record<ValueKind, (value: string) => unknown> = {
  text: (value) => value,
  number: Number,
  json: JSON.parse,
};

/**
 * The value of a flag. `@file` and `-` hide a secret from the process list and the shell's
 * history.
 * @throws UsageError that names the flag, never its value
 */
export async function readValue(kind: ValueKind, name: string, given: string): Promise<unknown> {
  const flag = `--${name.replaceAll('_', '-')}`;
  const value = await content(given).catch((error: Error) => {
    throw new UsageError(`${flag} cannot be read: ${error.message}`);
  });
  try {
    return PARSERS[kind](value);
  } catch {
    throw new UsageError(`${flag} is not valid JSON: run the command with --help to see an example`);
  }
}

async function content(given: string): Promise<string> {
  if (given === '-') return (await text(process.stdin)).trimEnd();
  if (given.startsWith('@')) return (await readFile(given.slice(1), 'utf8')).trimEnd();
  return given;
}
