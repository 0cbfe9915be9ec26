import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { PLATFORM_METRICS } from '../../edge/monitoring/platform-metrics.ts';
import { agentMetrics } from '../support/agent-metrics.ts';

const FOLDER = join(import.meta.dirname, '../../docs/monitoring');
const read = (file: string) => readFileSync(join(FOLDER, file), 'utf8');

const HISTOGRAM_SUFFIXES = ['_bucket', '_count', '_sum'];

/** Every series that the gateway and an agent have. */
async function existing(): Promise<Set<string>> {
  const ofAgent = await agentMetrics().registry.getMetricsAsJSON();
  return new Set([
    ...PLATFORM_METRICS.map(({ name, type }) => (type === 'counter' ? `${name}_total` : name)),
    ...ofAgent.flatMap(({ name, type }) =>
      String(type) === 'histogram' ? HISTOGRAM_SUFFIXES.map((suffix) => name + suffix) : [name],
    ),
  ]);
}

const namesIn = (text: string) => [...new Set(text.match(/\bbranchgate_[a-z0-9_]+/g))];

interface Dashboard {
  panels: { title: string; targets: { expr: string }[] }[];
}

test.each(['dashboard.json', 'alerts.yml'])('%s queries only metrics that exist', async (file) => {
  const metrics = await existing();
  const names = namesIn(read(file));
  expect(names.length).toBeGreaterThan(8);
  expect(names.filter((name) => !metrics.has(name))).toEqual([]);
});

test('the dashboard shows every metric', async () => {
  const { panels }: Dashboard = JSON.parse(read('dashboard.json'));
  const shown = panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)).join('\n');
  const families = [
    ...PLATFORM_METRICS.map(({ name }) => name),
    ...(await agentMetrics().registry.getMetricsAsJSON()).map(({ name }) => name),
  ];
  expect(families.filter((name) => !shown.includes(name))).toEqual([]);
});

test('the page describes every metric', async () => {
  const page = read('README.md');
  const metrics = [
    ...PLATFORM_METRICS.map(({ name, type }) => (type === 'counter' ? `${name}_total` : name)),
    ...(await agentMetrics().registry.getMetricsAsJSON()).map(({ name }) => name),
  ];
  expect(metrics.filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
});

/** `promtool` of the Debian package `prometheus`. */
function promtool(args: string[], input?: string) {
  const { status, stdout, stderr } = spawnSync('promtool', args, { encoding: 'utf8', input });
  return { status, output: stdout + stderr };
}

test('promtool accepts the alert rules', () => {
  expect(promtool(['check', 'rules', join(FOLDER, 'alerts.yml')])).toMatchObject({ status: 0 });
});

test('promtool accepts every query of the dashboard', () => {
  const { panels }: Dashboard = JSON.parse(read('dashboard.json'));
  const rules = panels.flatMap(({ targets }) =>
    targets.map(({ expr }, index) => ({
      alert: `Query${index}`,
      expr: expr.replaceAll('$__rate_interval', '5m'),
    })),
  );
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-rules-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'dashboard.yml');
  // JSON is YAML.
  writeFileSync(file, JSON.stringify({ groups: [{ name: 'dashboard', rules }] }));
  expect(promtool(['check', 'rules', file])).toMatchObject({ status: 0 });
});

test('promtool accepts the metrics of an agent', async () => {
  const metrics = agentMetrics();
  metrics.countClone('reflink', 120);
  metrics.countPause(30);
  await metrics.countOperation('branch.drop', Promise.resolve());
  const text = await metrics.registry.metrics();
  expect(text).toContain('branchgate_clone_duration_seconds_count{method="reflink"} 1');
  expect(promtool(['check', 'metrics'], text)).toEqual({ status: 0, output: '' });
});
