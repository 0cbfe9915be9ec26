import { fileURLToPath, pathToFileURL } from 'node:url';
import { freezeIntrinsics } from '../shared/frozen-intrinsics.ts';
import { DEFAULT_STATE_DIR } from './process/state-dir.ts';
import { ARCHIVE_WAL } from './servers/archive-command.ts';
import { Trial } from './upgrade/trial.ts';

const words = process.argv.slice(2);
const begun =
  words[0] === 'run'
    ? Trial.begin(fileURLToPath(import.meta.url), process.env.STATE_DIR || DEFAULT_STATE_DIR)
    : null;
// Each loads only what it needs.
if (words[0] === ARCHIVE_WAL && words.length === 3) {
  // PostgreSQL calls it for each 16 MB of its log.
  const { archiveWal } = await import('./past/archive-wal.ts');
  const { say } = await import('./control-tool/terminal.ts');
  process.exitCode = await archiveWal(words[1] ?? '', words[2] ?? '', say);
} else if (begun && 'instead' in begun) {
  await import(pathToFileURL(begun.instead).href);
} else {
  const { runControlTool } = await import('./control-tool/control-tool.ts');
  const { becomeOwnerOf, runsAsOwner } = await import('./control-tool/owner.ts');
  if (runsAsOwner(words)) becomeOwnerOf(process.env.STATE_DIR || DEFAULT_STATE_DIR);
  // Catalogs and rows of tenants, and of the sources that they name, are input of others.
  freezeIntrinsics();
  process.exit(await runControlTool(words, begun));
}
