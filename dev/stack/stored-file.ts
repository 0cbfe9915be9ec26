import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { z } from 'zod';
import { Refusal } from './refusal.ts';

/**
 * JSON that the stack keeps from one start to the next; null when there is none yet.
 * @throws Refusal when it is there but can't be read: to go on with new values would orphan what the old ones name
 */
export function readStored<S extends z.ZodType>(path: string, schema: S): z.output<S> | null {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    throw new Refusal(`${path} can't be read (${code})`);
  }
  try {
    return schema.parse(JSON.parse(text));
  } catch {
    // Neither the parser's message nor the schema's: the file may hold secrets.
    throw new Refusal(`${path} is damaged: restore it, or set DEV_DIR to a new folder`);
  }
}

/** Written aside and renamed, so that readers see the old file or the new one. */
export function writeStored(path: string, value: unknown, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true });
  const aside = `${path}.${process.pid}.new`;
  writeFileSync(aside, `${JSON.stringify(value, null, 2)}\n`, { mode, flush: true });
  renameSync(aside, path);
}
