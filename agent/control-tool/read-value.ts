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
 * The value of a flag; null when it was left out. `@file` and `-` keep a secret out of the list of processes
 * and out of the shell's history.
 * @throws UsageError that names the flag, never its value
 */
export async function readValue(kind: ValueKind, name: string, given: string | undefined): Promise<unknown> {
  if (given === undefined) return null;
  const flag = `--${name.replaceAll('_', '-')}`;
  const value = await content(given).catch((error: Error) => {
    throw new UsageError(`${flag}: ${error.message}`);
  });
  try {
    return PARSERS[kind](value);
  } catch {
    throw new UsageError(`${flag}: not valid JSON`);
  }
}

async function content(given: string): Promise<string> {
  if (given === '-') return (await text(process.stdin)).trimEnd();
  if (given.startsWith('@')) return (await readFile(given.slice(1), 'utf8')).trimEnd();
  return given;
}
