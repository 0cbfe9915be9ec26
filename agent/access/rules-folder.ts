import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { RULE_FILES } from '../servers/configuration.ts';

/** Made with empty files, because PgBouncer does not start while a file that it includes is missing. */
export async function makeRulesFolder(rulesDir: string): Promise<void> {
  await mkdir(rulesDir, { recursive: true, mode: 0o750 });
  for (const name of Object.values(RULE_FILES)) {
    // 'a': what is there stays.
    await writeFile(join(rulesDir, name), '', { flag: 'a', mode: 0o640 });
  }
}
