import { isMainThread, parentPort, workerData } from 'node:worker_threads';
import { COMPARISON } from './difference/schema/comparison-messages.ts';

// Each loads only what it needs.
if (isMainThread) {
  const { runControlTool } = await import('./control-tool.ts');
  process.exit(await runControlTool(process.argv.slice(2)));
} else if (parentPort && workerData?.kind === COMPARISON) {
  const { serveComparison } = await import('./difference/schema/serve-comparison.ts');
  await serveComparison(parentPort, workerData);
}
