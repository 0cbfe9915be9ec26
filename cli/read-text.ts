import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { CommandError } from './exit-codes.ts';

/** The text of a file; `-` is standard input. @param what names it in an error. @throws CommandError */
export const readText = async (path: string, what: string): Promise<string> =>
  path === '-'
    ? text(process.stdin)
    : readFile(path, 'utf8').catch((error: Error) => {
        throw new CommandError('usage', `${what} cannot be read (${error.message}).`);
      });

/** What an option gives: `@file` the text of a file, `-` standard input, anything else itself. @throws CommandError */
export const readGiven = async (given: string): Promise<string> =>
  given === '-' || given.startsWith('@') ? readText(given.replace(/^@/, ''), given) : given;
