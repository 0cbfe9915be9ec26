import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { hosts } from '../../../edge/database/schema.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

const WRITES = 30;

let gateway: TripsGateway;
beforeAll(async () => {
  gateway = await startTripsGateway(0, { LIMIT_WRITES_PER_MINUTE: String(WRITES) });
  const { id } = await gateway.api.project('Shop');
  await gateway.api.branch(id, 'made');
});
afterAll(() => gateway?.stop());

const scrape = (secret = PLATFORM_SECRET) =>
  fetch(`${gateway.url}/platform/v1/metrics`, { headers: { Authorization: `Bearer ${secret}` } });

test('the metrics need the platform secret', async () => {
  expect((await scrape('wrong')).status).toBe(401);
});

/** The parser of Prometheus, which imports only samples with a time. */
function parseWithPromtool(text: string) {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-metrics-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'metrics.txt');
  const time = Math.floor(Date.now() / 1000);
  writeFileSync(file, text.replaceAll(/^([^#].*)$/gm, `$1 ${time}`));
  const { status, stderr } = spawnSync(
    'promtool',
    ['tsdb', 'create-blocks-from', 'openmetrics', file, folder],
    { encoding: 'utf8' },
  );
  return { status, stderr };
}

test('hosts, branches, jobs and refusals are in the text, which is OpenMetrics and at most 15 s old', async () => {
  const refuse = () => gateway.api.post('/api/v1/projects', { name: '' });
  const statuses: number[] = [];
  for (let n = 0; n < WRITES + 3; n += 1) statuses.push((await refuse()).status);
  const refused = statuses.filter((status) => status === 429).length;
  expect(refused).toBeGreaterThanOrEqual(3);

  const response = await scrape();
  expect(response.headers.get('content-type')).toMatch(/^application\/openmetrics-text; version=1\.0\.0/);
  const text = await response.text();
  const [host] = await gateway.db.select().from(hosts);
  expect(text).toContain(`branchgate_host_linked{host="${host?.name}"} 1\n`);
  expect(text).toContain('branchgate_branches{status="active"} 2\n');
  expect(text).toContain('branchgate_open_jobs{age="under_1m"} 0\n');
  // The first refusal is added immediately, those of the next seconds with a later one.
  expect(text).toContain('branchgate_rate_limit_refusals_total{limit="writes"} 1\n');
  expect(text.endsWith('\n# EOF\n')).toBe(true);
  expect(parseWithPromtool(text)).toEqual({ status: 0, stderr: '' });

  await gateway.db.update(hosts).set({ freeBytes: 12_345 });
  expect(await (await scrape()).text()).toBe(text);
});
