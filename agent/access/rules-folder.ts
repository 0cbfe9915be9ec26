import { renameSync, writeFileSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { RULE_FILES } from '../servers/configuration.ts';
import type { RuleFileTexts } from './rule-files.ts';

export const RULE_FILE_NAMES = Object.keys(RULE_FILES) as (keyof RuleFileTexts)[];

/** Creates empty files, because PgBouncer does not start while a file that it includes is missing. */
export async function makeRulesFolder(rulesDir: string): Promise<void> {
  await mkdir(rulesDir, { recursive: true, mode: 0o750 });
  for (const name of Object.values(RULE_FILES)) {
    // 'a' preserves existing content.
    await writeFile(join(rulesDir, name), '', { flag: 'a', mode: 0o640 });
  }
}

export async function readRuleFiles(folder: string): Promise<RuleFileTexts> {
  const texts = await Promise.all(
    RULE_FILE_NAMES.map(async (name) => [name, await readFile(join(folder, RULE_FILES[name]), 'utf8')]),
  );
  return Object.fromEntries(texts);
}

/**
 * Replaces rule files atomically.
 * @param suffix of the temporary file; a writer that does not hold the lock uses its own
 */
export function writeRuleFiles(
  folder: string,
  texts: RuleFileTexts,
  names = RULE_FILE_NAMES,
  suffix = 'new',
): void {
  for (const name of names) {
    const path = join(folder, RULE_FILES[name]);
    writeFileSync(`${path}.${suffix}`, texts[name], { mode: 0o640 });
    renameSync(`${path}.${suffix}`, path);
  }
}
