import { count, isNotNull, min, sql } from 'drizzle-orm';
import { BRANCH_STATUSES } from '../../shared/branch/branch-status.ts';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { isLive, isOpenJob } from '../database/conditions.ts';
import { type DatabaseBinding, openDatabase } from '../database/database.ts';
import { hosts, jobs, projectBranches } from '../database/schema.ts';
import { type HostLinks, isLinked } from '../hosts/host-client.ts';
import { type Limiters, readRefusals } from '../rate-limits/limiter-client.ts';
import type { Refusals } from '../rate-limits/limits.ts';

export const OPEN_METRICS = 'application/openmetrics-text; version=1.0.0; charset=utf-8';

export interface Sample {
  labels?: Record<string, string>;
  value: number;
}

/** A metric family of OpenMetrics; the samples of a counter get the suffix `_total`. */
export interface MetricFamily {
  name: string;
  type: 'gauge' | 'counter';
  help: string;
}

/** The text format of OpenMetrics 1.0. */
const toOpenMetrics = (families: readonly (MetricFamily & { samples: Sample[] })[]): string =>
  `${families.flatMap(linesOf).join('\n')}\n# EOF\n`;

function linesOf({ name, type, help, samples }: MetricFamily & { samples: Sample[] }): string[] {
  const sampleName = type === 'counter' ? `${name}_total` : name;
  return [
    `# TYPE ${name} ${type}`,
    `# HELP ${name} ${help}`,
    ...samples.map(({ labels, value }) => `${sampleName}${labels ? inBraces(labels) : ''} ${value}`),
  ];
}

const inBraces = (labels: Record<string, string>): string =>
  `{${Object.entries(labels)
    .map(([label, value]) => `${label}="${escaped(value)}"`)
    .join(',')}}`;

const escaped = (text: string): string =>
  text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');

const CACHE_MS = 15_000;
const MINUTE_MS = 60_000;

/** Ages of open jobs. A job that succeeds takes seconds, and a creation is abandoned after 15 minutes. */
const AGES = [
  { age: 'under_1m', from: 0 },
  { age: 'from_1m_to_15m', from: MINUTE_MS },
  { age: 'over_15m', from: 15 * MINUTE_MS },
] as const;

interface Facts {
  hosts: {
    name: string;
    linked: boolean;
    draining: boolean;
    freeBytes: number | null;
    description: HostDescription | null;
  }[];
  /** By status. */
  branches: ReadonlyMap<string, number>;
  /** By age. */
  openJobs: ReadonlyMap<string, number>;
  oldestJobSeconds: number;
  refusals: Refusals;
  /** Null where D1 does not say. */
  d1Bytes: number | null;
}

const flag = (value: boolean) => (value ? 1 : 0);

/** The metrics of the gateway: what each is, and how it is read from the facts. */
export const PLATFORM_METRICS: readonly (MetricFamily & { read: (facts: Facts) => Sample[] })[] = [
  {
    name: 'branchgate_host_linked',
    type: 'gauge',
    help: 'Whether the agent of an enrolled host is connected.',
    read: (facts) => facts.hosts.map(({ name, linked }) => ({ labels: { host: name }, value: flag(linked) })),
  },
  {
    name: 'branchgate_host_draining',
    type: 'gauge',
    help: 'Whether a host gets no new projects.',
    read: (facts) =>
      facts.hosts.map(({ name, draining }) => ({ labels: { host: name }, value: flag(draining) })),
  },
  {
    name: 'branchgate_host_free_bytes',
    type: 'gauge',
    help: "Free disk for PostgreSQL's data at the last reconciliation.",
    read: (facts) =>
      facts.hosts.flatMap(({ name, freeBytes }) =>
        freeBytes === null ? [] : [{ labels: { host: name }, value: freeBytes }],
      ),
  },
  {
    name: 'branchgate_host_last_backup_seconds',
    type: 'gauge',
    help: 'Unix time at which the last backup of a host ended; missing without one.',
    read: (facts) =>
      facts.hosts.flatMap(({ name, description }) =>
        description?.last_backup_at
          ? [{ labels: { host: name }, value: Date.parse(description.last_backup_at) / 1000 }]
          : [],
      ),
  },
  {
    name: 'branchgate_branches',
    type: 'gauge',
    help: 'Branches by status, without deleted ones.',
    read: ({ branches }) =>
      BRANCH_STATUSES.filter((status) => status !== 'deleted').map((status) => ({
        labels: { status },
        value: branches.get(status) ?? 0,
      })),
  },
  {
    name: 'branchgate_open_jobs',
    type: 'gauge',
    help: 'Jobs that have not ended, by age.',
    read: ({ openJobs }) => AGES.map(({ age }) => ({ labels: { age }, value: openJobs.get(age) ?? 0 })),
  },
  {
    name: 'branchgate_oldest_open_job_seconds',
    type: 'gauge',
    help: 'Age of the oldest job that has not ended; 0 without one.',
    read: ({ oldestJobSeconds }) => [{ value: oldestJobSeconds }],
  },
  {
    name: 'branchgate_d1_bytes',
    type: 'gauge',
    help: 'Size of D1, which holds at most 10 GB.',
    read: ({ d1Bytes }) => (d1Bytes === null ? [] : [{ value: d1Bytes }]),
  },
  {
    name: 'branchgate_rate_limit_refusals',
    type: 'counter',
    help: 'Requests over a rate limit, by limit.',
    read: ({ refusals }) => Object.entries(refusals).map(([limit, value]) => ({ labels: { limit }, value })),
  },
];

async function readFacts(env: DatabaseBinding & HostLinks & Limiters, now: number): Promise<Facts> {
  const db = openDatabase(env.DB);
  const olderThan = (milliseconds: number) => sql`${jobs.createdAt} <= ${now - milliseconds}`;
  const age = sql<string>`case ${sql.join(
    AGES.toReversed().map((each) => sql`when ${olderThan(each.from)} then ${each.age}`),
    sql` `,
  )} else ${AGES[0].age} end`;
  const [[hostRows, branches, openJobs], refusals, size] = await Promise.all([
    db.batch([
      db
        .select({
          id: hosts.id,
          name: hosts.name,
          draining: hosts.draining,
          freeBytes: hosts.freeBytes,
          description: hosts.description,
        })
        .from(hosts)
        .where(isNotNull(hosts.enrolledAt)),
      db
        .select({ status: projectBranches.status, total: count() })
        .from(projectBranches)
        .where(isLive)
        .groupBy(projectBranches.status),
      db
        .select({ age, total: count(), oldest: min(jobs.createdAt) })
        .from(jobs)
        .where(isOpenJob)
        .groupBy(age),
    ]),
    readRefusals(env),
    env.DB.prepare('select 1').run(),
  ]);
  const linked = await Promise.all(hostRows.map(({ id }) => isLinked(env, id)));
  const oldest = Math.min(now, ...openJobs.flatMap((row) => (row.oldest ? [row.oldest.getTime()] : [])));
  return {
    hosts: hostRows.map((host, index) => ({ ...host, linked: linked[index] ?? false })),
    branches: new Map(branches.map(({ status, total }) => [status, total])),
    openJobs: new Map(openJobs.map((row) => [row.age, row.total])),
    oldestJobSeconds: (now - oldest) / 1000,
    refusals,
    d1Bytes: size.meta.size_after ?? null,
  };
}

interface Reading {
  at: number;
  text: Promise<string>;
}

const readings = new WeakMap<DatabaseBinding & HostLinks & Limiters, Reading>();

/** The metrics in the text format of OpenMetrics, at most 15 s old. */
export function platformMetrics(env: DatabaseBinding & HostLinks & Limiters, now: number): Promise<string> {
  const known = readings.get(env);
  if (known && now >= known.at && now - known.at < CACHE_MS) return known.text;
  const text = readFacts(env, now).then((facts) =>
    toOpenMetrics(PLATFORM_METRICS.map(({ read, ...family }) => ({ ...family, samples: read(facts) }))),
  );
  readings.set(env, { at: now, text });
  // A failure must not last for the time of the cache.
  text.catch(() => {
    if (readings.get(env)?.text === text) readings.delete(env);
  });
  return text;
}
