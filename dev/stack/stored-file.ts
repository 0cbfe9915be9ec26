import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { z } from 'zod';
import { Refusal } from './refusal.ts';

/**
 * A JSON file that the stack stores between starts; null when it does not exist yet.
 * @throws Refusal when the file is unreadable, because new values would not match the rest of the stored state
 */
export function readStored<S extends z.ZodType>(path: string, schema: S): z.output<S> | null {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    throw new Refusal(`${path} cannot be read (${code}): start the stack as its owner`);
  }
  try {
    return schema.parse(JSON.parse(text));
  } catch {
    // Quotes neither the parser's message nor the schema's, because the file may contain secrets.
    throw new Refusal(`${path} is damaged: restore it, or set DEV_DIR to a new folder`);
  }
}

/** Replaces the file atomically, so that readers see the old file or the new one. */
export function writeStored(path: string, value: unknown, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true });
  const temporary = `${path}.${process.pid}.new`;
  writeFileSync(temporary, `${JSON.stringify(value, null, 2)}\n`, { mode, flush: true });
  renameSync(temporary, path);
}
