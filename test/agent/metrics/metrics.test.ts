import { expect, onTestFinished, test } from 'vitest';
import { serveMetrics } from '../../../agent/metrics/metrics.ts';
import { HostError } from '../../../agent/process/host-error.ts';
import { agentMetrics } from '../../support/agent-metrics.ts';
import { eventually } from '../../support/eventually.ts';
import { freePort } from '../../support/free-port.ts';

test('operations are counted by name and outcome', async () => {
  const metrics = agentMetrics();
  const full = Promise.reject(new HostError('HOST_FULL', 'the disk is full'));
  await metrics.countOperation('branch.drop', Promise.resolve({ dropped: true }));
  await metrics.countOperation('branch.clone', full).catch(() => {});
  await metrics.countOperation('branch.clone', Promise.reject(new Error('s3cret'))).catch(() => {});
  const text = await metrics.registry.metrics();
  for (const [operation, outcome] of [
    ['branch.drop', 'ok'],
    ['branch.clone', 'HOST_FULL'],
    ['branch.clone', 'INTERNAL'],
  ])
    expect(text).toMatch(
      new RegExp(
        `^branchgate_operation_duration_seconds_count\\{(?=.*operation="${operation}")(?=.*outcome="${outcome}").*\\} 1$`,
        'm',
      ),
    );
  expect(text).not.toContain('s3cret');
});

test('what is so at the moment is read with the metrics', async () => {
  let linked = true;
  const metrics = agentMetrics({ isLinked: () => linked });
  expect(await metrics.registry.metrics()).toMatch(/^branchgate_link_up 1$/m);
  linked = false;
  const text = await metrics.registry.metrics();
  expect(text).toMatch(/^branchgate_link_up 0$/m);
  expect(text).toMatch(/^branchgate_log_unread_bytes\{log="pooler"\} 17$/m);
  expect(text).toMatch(/^branchgate_disk_free_bytes\{volume="data,wal"\} 5242880$/m);
  expect(text).toMatch(/^branchgate_disk_free_inodes\{volume="data,wal"\} 7$/m);
  expect(text).toMatch(/^branchgate_oldest_id_age\{kind="transaction"\} 200000000$/m);
  expect(text).toMatch(/^branchgate_largest_source_extents 1200$/m);
  expect(text).toMatch(/^branchgate_following\{state="following"\} 2$/m);
  expect(text).toMatch(/^branchgate_following\{state="stopped"\} 1$/m);
  expect(text).toMatch(/^branchgate_following_slot_bytes 1048576$/m);
  expect(text).toMatch(/^branchgate_recovery_wanted_seconds 86400$/m);
  expect(text).toMatch(/^branchgate_recovery_window_seconds 0$/m);
  expect(text).toMatch(/^branchgate_recovery_drills_failing 1$/m);
  expect(text).toMatch(/^branchgate_recovery_drills_overdue 2$/m);
  expect(text).toMatch(/^branchgate_archive_waiting_files 4$/m);
  expect(text).toMatch(/^branchgate_standby_connected 1$/m);
  expect(text).toMatch(/^branchgate_standby_lag_bytes 2048$/m);
  expect(text).toMatch(/^branchgate_standby_lag_seconds 1.5$/m);
  expect(text).toMatch(/^branchgate_following_lag_seconds 0\.4$/m);
  expect(text).toMatch(/^branchgate_certificate_end_seconds 1798761600$/m);
});

test('a value that cannot be read is missing, and the others are there', async () => {
  const troubles: string[] = [];
  let isAway = false;
  const poolerMemory = async () => {
    if (isAway) throw new Error('PgBouncer is away');
    return 1000;
  };
  const metrics = agentMetrics({ poolerMemory, largestSource: () => null }, (name) => troubles.push(name));
  expect(await metrics.registry.metrics()).toMatch(/^branchgate_pooler_memory_bytes 1000$/m);
  isAway = true;
  const text = await metrics.registry.metrics();
  expect(text).not.toMatch(/^branchgate_pooler_memory_bytes /m);
  expect(text).not.toMatch(/^branchgate_largest_source_/m);
  expect(text).toMatch(/^branchgate_link_up 1$/m);
  expect(troubles).toEqual(['branchgate_pooler_memory_bytes']);
});

function serving(port: number, metrics = agentMetrics()) {
  const stop = new AbortController();
  const events: string[] = [];
  const served = serveMetrics({
    registry: metrics.registry,
    port,
    log: (event) => events.push(event),
    signal: stop.signal,
  });
  onTestFinished(async () => {
    stop.abort();
    await served;
  });
  return events;
}

test('the metrics are served on loopback, and clients at the same time cause one reading', async () => {
  const port = await freePort();
  let readings = 0;
  const poolerMemory = async () => {
    readings += 1;
    // Until every client has sent its request.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    return 1;
  };
  const events = serving(port, agentMetrics({ poolerMemory }));
  await eventually(async () => expect(events).toEqual(['metrics.served']));
  const get = (path: string) => fetch(`http://127.0.0.1:${port}${path}`);
  const responses = await Promise.all(Array.from({ length: 5 }, () => get('/metrics')));
  expect(responses.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
  expect(await responses[0]?.text()).toContain('branchgate_link_up 1');
  expect(readings).toBe(1);
  expect((await get('/')).status).toBe(404);
});

test('an agent whose port is taken runs without metrics', async () => {
  const port = await freePort();
  const first = serving(port);
  await eventually(async () => expect(first).toEqual(['metrics.served']));
  const second = serving(port);
  await eventually(async () => expect(second).toEqual(['metrics.unserved']));
});
