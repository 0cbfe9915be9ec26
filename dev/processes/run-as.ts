import { execFile } from 'node:child_process';
import { basename } from 'node:path';
import { promisify } from 'node:util';
import { Refusal } from '../stack/refusal.ts';
import type { Environment } from '../stack/settings.ts';
import type { OsUser } from './os-user.ts';

/**
 * Runs a program to its end.
 * @throws Refusal with the last line of its error output
 */
export async function runAs(
  user: OsUser,
  command: string,
  args: readonly string[],
  options: { cwd: string; env?: Environment },
): Promise<void> {
  const { uid, gid } = user;
  try {
    await promisify(execFile)(command, args, { ...options, uid, gid });
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string };
    throw new Refusal(`${basename(command)} failed: ${(stderr || message).trim().split('\n').at(-1)}`);
  }
}
