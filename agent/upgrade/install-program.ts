import { execFile } from 'node:child_process';
import { chownSync, copyFileSync, existsSync, linkSync, renameSync, rmSync, statSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { promisify } from 'node:util';
import { sha256OfFile, siblingOf } from './program-file.ts';
import { hasFailed, readRunRecord } from './trial.ts';

const run = promisify(execFile);
const WITHIN = { timeout: 20_000 };

export interface Installation {
  /** The installed program, which is replaced. */
  program: string;
  stateDir: string;
  /** The new program, verified. */
  bytes: Buffer;
}

type Step = (installation: Installation) => Promise<void>;

/**
 * The steps of an installation. After each of them, and inside each of them, the files are such that the
 * agent starts and links; a repetition begins with the first step.
 */
export const INSTALLATION_STEPS: readonly Step[] = [settle, write, tryOut, keepPrevious, swap];

/** An upgrade that was killed may have left a program that has failed its trial. */
async function settle({ program, stateDir }: Installation): Promise<void> {
  if (hasFailed(program, stateDir)) restorePrevious(program);
}

/**
 * Puts the program before this one back. It stays under its other name too, because the agent may run from
 * there.
 */
export function restorePrevious(program: string): void {
  const file = siblingOf(program, 'new');
  rmSync(file, { force: true });
  linkSync(siblingOf(program, 'previous'), file);
  renameSync(file, program);
}

export function forgetPrevious(program: string): void {
  rmSync(siblingOf(program, 'previous'), { force: true });
}

async function write({ program, bytes }: Installation): Promise<void> {
  const { mode, uid, gid } = statSync(program);
  const file = siblingOf(program, 'new');
  rmSync(file, { force: true });
  const handle = await open(file, 'wx', mode & 0o777);
  try {
    // Not reduced by root's umask: the agent's user must be able to read it.
    await handle.chmod(mode & 0o777);
    await handle.writeFile(bytes);
    await handle.sync();
  } finally {
    await handle.close();
  }
  if (process.getuid?.() === 0) chownSync(file, uid, gid);
}

/** A program that does not even start is not installed. */
async function tryOut({ program }: Installation): Promise<void> {
  await readVersion(siblingOf(program, 'new')).catch((error: Error) => {
    throw new Error(`the new program does not start (${error.message.split('\n')[0]}): nothing was changed`);
  });
}

/** @throws Error if the program does not run */
export async function readVersion(program: string): Promise<string> {
  const { stdout } = await run(process.execPath, [program, '--version'], WITHIN);
  return stdout.trim();
}

/** Keeps the program that is known to link, which is not the installed one if that is still on trial. */
async function keepPrevious({ program, stateDir }: Installation): Promise<void> {
  const previous = siblingOf(program, 'previous');
  const isProven = readRunRecord(stateDir)?.proven === sha256OfFile(program);
  if (existsSync(previous) && !isProven) return;
  const copy = `${previous}.copy`;
  copyFileSync(program, copy);
  const { uid, gid } = statSync(program);
  if (process.getuid?.() === 0) chownSync(copy, uid, gid);
  await sync(copy);
  renameSync(copy, previous);
}

async function swap({ program }: Installation): Promise<void> {
  renameSync(siblingOf(program, 'new'), program);
  await sync(dirname(program));
}

async function sync(path: string): Promise<void> {
  const handle = await open(path);
  await handle.sync().finally(() => handle.close());
}
