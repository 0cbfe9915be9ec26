import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { ROOT } from '../../dev/build/repository.ts';
import { workerConfiguration } from '../../dev/build/worker.ts';
import type { Report } from './report.ts';

const LIMIT_KB = 400;

const METHOD =
  'What `wrangler deploy` would upload, by `wrangler deploy --dry-run` with the configuration of the deployment; gzip is at its default level. KB are 1,000 bytes.';

export async function measureWorkerBundle(): Promise<Report> {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-bundle-'));
  try {
    execFileSync(join(ROOT, 'node_modules/.bin/wrangler'), ['deploy', '--dry-run', '--outdir', folder], {
      cwd: ROOT,
      stdio: 'pipe',
      env: { ...process.env, WRANGLER_SEND_METRICS: 'false', WRANGLER_LOG_PATH: folder, CI: '1' },
    });
    const script = readFileSync(join(ROOT, workerConfiguration().main));
    const size = { script: script.length / 1000, gzip: gzipSync(script).length / 1000 };
    return {
      title: 'Worker bundle',
      method: METHOD,
      goals: [
        { name: 'gzip', measured: size.gzip, limit: LIMIT_KB, unit: 'KB' },
        { name: 'script', measured: size.script, limit: null, unit: 'KB' },
      ],
      counts: { Kilobytes: { script: [size.script], gzip: [size.gzip] } },
    };
  } finally {
    rmSync(folder, { recursive: true });
  }
}
