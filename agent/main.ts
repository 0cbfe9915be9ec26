import { fileURLToPath, pathToFileURL } from 'node:url';
import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { freezeIntrinsics } from '../shared/frozen-intrinsics.ts';
import { COMPARISON } from './difference/schema/comparison-thread.ts';
import { DEFAULT_STATE_DIR } from './process/state-dir.ts';
import { Trial } from './upgrade/trial.ts';

// Each loads only what it needs.
if (isMainThread) {
  const words = process.argv.slice(2);
  const begun =
    words[0] === 'run'
      ? Trial.begin(fileURLToPath(import.meta.url), process.env.STATE_DIR || DEFAULT_STATE_DIR)
      : null;
  if (begun && 'instead' in begun) {
    await import(pathToFileURL(begun.instead).href);
  } else {
    const { runControlTool } = await import('./control-tool/control-tool.ts');
    const { becomeOwnerOf, runsAsOwner } = await import('./control-tool/owner.ts');
    if (runsAsOwner(words)) becomeOwnerOf(process.env.STATE_DIR || DEFAULT_STATE_DIR);
    // Catalogs and rows of tenants, and of the sources that they name, are input of others.
    freezeIntrinsics();
    process.exit(await runControlTool(words, begun));
  }
} else if (parentPort && workerData?.kind === COMPARISON) {
  const { serveComparison } = await import('./difference/schema/plan-schemas.ts');
  freezeIntrinsics();
  await serveComparison(parentPort, workerData);
}
