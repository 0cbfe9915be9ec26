import { globSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { violations } from '../support/records/invariants.ts';
import { takeSnapshot } from '../support/snapshot.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { sourcesOf } from '../support/stack/stack-sources.ts';

/**
 * `npm run soak -- --minutes 120`: branches are created and deleted without a pause, with both retentions on, and what
 * the service takes must not grow. What is over counts as older than the retentions: its times in D1 are moved back, as
 * days cannot be waited for.
 */

const HELP = 'npm run soak -- [--minutes 120]';
const { values } = parseArgs({
  options: { minutes: { type: 'string', default: '120' }, help: { type: 'boolean' } },
});
const minutes = Number(values.minutes);
if (values.help || !(minutes > 0)) {
  console.log(HELP);
  process.exit(values.help ? 0 : 2);
}

const CLIENTS = 3;
const SAMPLES = 24;
const AGED_MS = 10 * 86_400_000;
/** D1's own pages are filled in this time. */
const WARM_UP = 0.25;

/** What may be taken at the end ÷ after the warm-up, and a difference that no one notices. */
const LIMITS = {
  memory_mb: { ratio: 1.15, slack: 60 },
  descriptors: { ratio: 1.1, slack: 40 },
};
const D1_BYTES_A_LIFE = 2_000;
/** A line of each of a few events; the operator rotates them. */
const LOG_BYTES_A_LIFE = 8_000;

interface Sample {
  lives: number;
  d1_bytes: number;
  memory_mb: number;
  descriptors: number;
  logs_mb: number;
}

const children = (pid: number): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);

const tree = (pid: number): number[] => [pid, ...children(pid).flatMap(tree)];

function ofProcess<T>(read: () => T, otherwise: T): T {
  try {
    return read();
  } catch {
    return otherwise;
  }
}

const memoryOf = (pid: number) =>
  ofProcess(
    () => Number(/^Pss_Anon: +(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1]) / 1024,
    0,
  );
/** The process is one that stays. A session of PostgreSQL has a hundred, and there are more or less of them at any moment. */
const descriptorsOf = (pid: number) => ofProcess(() => readdirSync(`/proc/${pid}/fd`).length, 0);

function withD1<T>(stack: Stack, work: (d1: DatabaseSync) => T): T {
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { timeout: 20_000 });
  try {
    return work(d1);
  } finally {
    d1.close();
  }
}

/** Lives that are over become old enough to go. The event of a deletion has the time of its branch. */
const age = (stack: Stack) =>
  withD1(stack, (d1) => {
    for (const [table, columns, condition] of [
      ['project_branches', ['deleted_at'], "status = 'deleted'"],
      ['audit_events', ['created_at'], 'true'],
      ['jobs', ['created_at', 'updated_at'], "status in ('succeeded', 'failed')"],
    ] as const)
      d1.exec(
        `update ${table} set ${columns.map((column) => `${column} = ${column} - ${AGED_MS}`).join(', ')}
         where ${condition} and ${columns[0]} > ${Date.now() - AGED_MS / 2}`,
      );
  });

async function exportAudit(platform: Api): Promise<void> {
  const path = '/platform/v1/audit-events';
  for (let after = ''; ; ) {
    const { body } = await platform.get<{ audit_events: { id: string }[]; exported_until: string | null }>(
      `${path}${after && `?after=${after}`}`,
    );
    after ||= body.exported_until ?? '';
    const last = body.audit_events.at(-1)?.id;
    if (last === undefined) return;
    after = last;
    await platform.call('PUT', `${path}/exported`, { body: { event_id: last } });
  }
}

function sample(stack: Stack, lives: number): Sample {
  const { gateway, agent, postgres, pgbouncer } = stack.state.pids;
  const servers = [gateway, agent, postgres, pgbouncer].filter((pid) => pid !== null);
  const sum = (pids: readonly number[], measure: (pid: number) => number) =>
    pids.reduce((total, pid) => total + measure(pid), 0);
  const logs = globSync('*.log', { cwd: devFolder(stack.devDir).logs });
  return {
    lives,
    d1_bytes: withD1(stack, (d1) => {
      const one = (name: string) => Number(Object.values(d1.prepare(`pragma ${name}`).get() ?? {})[0]);
      return (one('page_count') - one('freelist_count')) * one('page_size');
    }),
    memory_mb: Math.round(sum(servers.flatMap(tree), memoryOf)),
    descriptors: sum([...servers, ...(gateway ? children(gateway) : [])], descriptorsOf),
    logs_mb:
      logs.reduce((total, name) => total + statSync(join(devFolder(stack.devDir).logs, name)).size, 0) /
      2 ** 20,
  };
}

const middle = (numbers: number[]) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? 0;

const stack = await startStack({
  restarts: false,
  env: {
    ...UNLIMITED,
    AUDIT_RETENTION_DAYS: '1',
    HISTORY_RETENTION_DAYS: '1',
    UNDELETE_SECONDS: '0',
    CRON_SECONDS: String(Math.max(5, minutes)),
  },
});
const faults: string[] = [];
try {
  const api = new Api(stack.url, await stack.token());
  const platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
  const projects = await Promise.all(Array.from({ length: CLIENTS }, (_, n) => api.project(`Soak ${n}`)));
  const end = Date.now() + minutes * 60_000;
  let lives = 0;
  const clients = projects.map(async ({ id }, client) => {
    for (let n = 0; Date.now() < end; n++) {
      const branch = await api.branch(id, `life-${client}-${n}`);
      const deleted = await api.call('DELETE', `/api/v1/projects/${id}/branches/${branch.id}`);
      if (deleted.status !== 202) faults.push(`a deletion ended with ${deleted.status}`);
      lives += 1;
    }
  });
  const samples: Sample[] = [];
  const watching = (async () => {
    for (let n = 1; n <= SAMPLES; n++) {
      await sleep(Math.max(0, end - (minutes * 60_000 * (SAMPLES - n)) / SAMPLES - Date.now()));
      await exportAudit(platform);
      age(stack);
      samples.push(sample(stack, lives));
      console.log(JSON.stringify(samples.at(-1)));
    }
  })();
  await Promise.all([...clients, watching]);
  const after = samples.slice(Math.ceil(SAMPLES * WARM_UP));
  const first = after.slice(0, 4);
  const last = after.slice(-4);
  const grown = (name: keyof Sample) => middle(last.map((s) => s[name])) - middle(first.map((s) => s[name]));
  const perLife = (name: keyof Sample) => grown(name) / grown('lives');
  const d1 = perLife('d1_bytes');
  const logs = perLife('logs_mb') * 2 ** 20;
  console.log(`${lives} lives; D1 ${Math.round(d1)} bytes, logs ${Math.round(logs)} bytes for each`);
  if (!(d1 <= D1_BYTES_A_LIFE)) faults.push(`D1 grows by ${Math.round(d1)} bytes a life`);
  if (!(logs <= LOG_BYTES_A_LIFE)) faults.push(`the logs grow by ${Math.round(logs)} bytes a life`);
  for (const name of ['memory_mb', 'descriptors'] as const) {
    const { ratio, slack } = LIMITS[name];
    const [before, now] = [first, last].map((part) => middle(part.map((s) => s[name]))) as [number, number];
    console.log(`${name}: ${before} after the warm-up, ${now} at the end`);
    if (now > before * ratio && now - before > slack)
      faults.push(`${name} has grown from ${before} to ${now}`);
  }
  await sleep(10_000);
  // Events that were exported and are old enough are gone.
  const isExported = (found: string) => /^audit events: .* is missing$/.test(found);
  faults.push(...violations(await takeSnapshot(sourcesOf(stack))).filter((found) => !isExported(found)));
} finally {
  await stack.stop();
}
for (const fault of faults) console.error(`soak: ${fault}`);
process.exit(faults.length > 0 ? 1 : 0);
