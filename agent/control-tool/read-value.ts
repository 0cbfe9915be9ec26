import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { UsageError } from './exit-codes.ts';

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
