import { readdirSync, readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import type pg from 'pg';
import { RULE_FILES } from '../../agent/servers/configuration.ts';
import { BATCH_MAX } from '../../shared/limits.ts';
import { Api, type BranchBody, FROM_LOOPBACK } from '../support/api.ts';
import { dropProject } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, makeBareClone, timeBareClone } from './bare-clone.ts';
import { raiseCaps } from './extents.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import { processorMs } from './processor-time.ts';
import type { Goal, Report } from './report.ts';
import { addSample, median, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 60 * 2 ** 30;
const MEGABYTES = 2;
const OF_PROJECT = 100;
const FEW = 10;
const LEVELS = [FEW, 100, 300, 1000];
const ROUNDS = 9;
const TOGETHER = 255;
/** Bare databases that are dropped in sequence for comparison. */
const BARE_DROPS = 64;
const LIMIT = 1.3;
const DELETIONS_LIMIT = 0.5;
const POLL_MS = 2;
/** The longest lease. A run is over before. */
const LEASE_SECONDS = 3_600;

const OPERATIONS = ['create', 'rule', 'rotate', 'reset', 'delete', 'list'] as const;
type Operation = (typeof OPERATIONS)[number];
/** Without a limit: the reset was not part of the goal. */
const LIMITED: readonly Operation[] = ['create', 'delete', 'rule', 'rotate'];

const METHOD = `A main of about ${MEGABYTES + 8} MB on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all \
on this machine. One host is filled with leased branches, in projects of ${OF_PROJECT}; a project of ${FEW} is there from the start. At each \
number of branches, ${ROUNDS} rounds after a first one that is discarded: a bare clone (\`CREATE DATABASE … STRATEGY FILE_COPY\`, \
\`file_copy_method = clone\`), and one branch of the small project, and then of one of ${OF_PROJECT}, that is created (until the 201), gets a rule \
(until it is applied), is rotated, reset and deleted for good (until its database is gone), and the list of its project. At the end \
${TOGETHER} branches are deleted together, until all databases are gone, and all other projects but the small one, in which the rounds are \
repeated: the ratios are those to both times with ${FEW} branches. Processor time is that of all threads and children of a process.`;

/** Measures what one operation costs on a host with many branches. @param signal aborts it */
export const measureGrowth = (signal: AbortSignal, most: number): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, (stack) => measure(stack, most), {
    ...UNLIMITED,
    LEASED_BRANCH_LIMIT: String(OF_PROJECT),
    BRANCH_LIMIT_MAX: String(OF_PROJECT),
  });

/** A branch, and its database. */
interface Made {
  id: string;
  projectId: string;
  database: string;
}

interface Found {
  times: Series;
  processor: Series;
}

async function measure(stack: Stack, most: number): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const makeProject = async (name: string) => {
    const filled = await filledMain(api, name, MEGABYTES);
    await raiseCaps(stack, api, filled, OF_PROJECT);
    return filled;
  };
  const small = await makeProject('Small');
  const large: FilledMain[] = [];
  const branches: Record<string, Made[]> = {};
  const found: Found = { times: {}, processor: {} };
  const counts: Series = {};
  const levels = LEVELS.filter((level) => level <= most);
  const fill = async (wanted: number, { project }: FilledMain) => {
    const own = branches[project.id] ?? [];
    branches[project.id] = own;
    while (own.length + 1 < wanted) own.push(...(await makeBatch(api, project.id, wanted - own.length - 1)));
  };
  const look = (level: string) => {
    for (const [name, bytes] of Object.entries(sizesOf(stack)))
      addSample(counts, `${name}, ${level}`, bytes / 1024);
  };
  try {
    await fill(FEW, small);
    for (const level of levels) {
      for (let left = level - FEW - OF_PROJECT * large.length; left > 0; left -= OF_PROJECT) {
        const project = await makeProject(`Large ${large.length + 1}`);
        large.push(project);
        await fill(Math.min(left, OF_PROJECT), project);
      }
      const first = large[0];
      await fill(OF_PROJECT, first ?? small).catch(() => {});
      await rounds(stack, api, session, found, String(level), { small, large: first });
      look(String(level));
    }
    const deleted = await deleteTogether(
      api,
      session,
      large.flatMap(({ project }) => branches[project.id] ?? []),
      small,
    );
    for (const { project } of large) await dropProject(api, project.id);
    await rounds(stack, api, session, found, `${FEW} again`, { small, large: undefined });
    look(`${FEW} again`);
    return {
      title: 'Operations on a host with many branches',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [...ratios(found.times, String(levels.at(-1))), ...(deleted ? [deleted] : [])],
      times: { 'Durations, by branches of the host': found.times, 'Processor time': found.processor },
      counts: { 'Kilobytes of memory and files': counts },
    };
  } finally {
    await session.end();
  }
}

async function makeBatch(api: Api, projectId: string, count: number): Promise<Made[]> {
  const request = {
    count: Math.min(count, BATCH_MAX),
    name_prefix: `f${crypto.randomUUID().slice(0, 8)}-`,
    lease_seconds: LEASE_SECONDS,
  };
  const path = `/api/v1/projects/${projectId}/branches/batch`;
  const { status, body } = await api.post<{ branches: BranchBody[] }>(path, request, FROM_LOOPBACK);
  if (status !== 201) throw new Error(JSON.stringify(body));
  return body.branches.map((branch) => madeOf(projectId, branch));
}

const madeOf = (projectId: string, { id, database_name }: BranchBody): Made => ({
  id,
  projectId,
  database: database_name,
});

/** Runs the operations in turn on a new branch of each project. */
async function rounds(
  stack: Stack,
  api: Api,
  session: pg.Client,
  found: Found,
  level: string,
  projects: { small: FilledMain; large: FilledMain | undefined },
): Promise<void> {
  for (let round = 0; round <= ROUNDS; round++) {
    const record = (name: string, ms: number, spent: Record<string, number>) => {
      if (round === 0) return;
      addSample(found.times, name, ms);
      for (const [process, processorTime] of Object.entries(spent))
        addSample(found.processor, `${name}: ${process}`, processorTime);
    };
    const measured = async (name: string, action: () => Promise<unknown>) => {
      const before = processorOf(stack);
      const ms = await timed(action);
      const after = processorOf(stack);
      record(
        name,
        ms,
        Object.fromEntries(Object.entries(after).map(([key, to]) => [key, to - (before[key] ?? 0)])),
      );
    };
    record(`bare, ${level}`, await timeBareClone(session, projects.small.main.database), {});
    for (const [size, filled] of Object.entries(projects)) {
      if (!filled) continue;
      const nameOf = (operation: Operation) => `${operation}, ${level}${size === 'large' ? ', of 100' : ''}`;
      const { id } = filled.project;
      const path = `/api/v1/projects/${id}`;
      let branch: BranchBody | undefined;
      await measured(nameOf('create'), async () => {
        branch = await api.branch(id, `round-${level.replaceAll(' ', '-')}-${round}`, {
          lease_seconds: LEASE_SECONDS,
        });
      });
      if (!branch) throw new Error('no branch');
      const { id: branchId, database } = madeOf(id, branch);
      let rule = { id: '', status: '' };
      await measured(nameOf('rule'), async () => {
        rule = await api.allow(id, `10.9.${round}.0/24`, branchId);
      });
      if (rule.status !== 'applied') throw new Error(JSON.stringify(rule));
      await measured(nameOf('rotate'), () =>
        expectOk(api.post(`${path}/branches/${branchId}/credentials/rotate`, {})),
      );
      await measured(nameOf('reset'), () =>
        expectOk(api.post(`${path}/branches/${branchId}/reset`, { to: 'parent' })),
      );
      await measured(nameOf('delete'), async () => {
        await expectOk(api.delete(`${path}/branches/${branchId}?purge=true`));
        await untilGone(session, [database]);
      });
      await measured(nameOf('list'), () => expectOk(api.get(`${path}/branches`)));
    }
  }
}

async function expectOk(response: Promise<{ status: number; body: unknown }>): Promise<void> {
  const { status, body } = await response;
  if (status >= 300) throw new Error(`${status} ${JSON.stringify(body)}`);
}

async function untilGone(session: pg.Client, databases: readonly string[]): Promise<void> {
  for (;;) {
    const { rowCount } = await session.query('select from pg_database where datname = any ($1)', [databases]);
    if (rowCount === 0) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** @returns null on a host with fewer branches */
async function deleteTogether(
  api: Api,
  session: pg.Client,
  all: readonly Made[],
  { main }: FilledMain,
): Promise<Goal | null> {
  const doomed = all.slice(0, TOGETHER);
  if (doomed.length < TOGETHER) return null;
  const bareRate = async () => {
    const names = Array.from({ length: BARE_DROPS }, (_, n) => `bare_${n}`);
    for (const name of names) await makeBareClone(session, main.database, name);
    const ms = await timed(async () => {
      for (const name of names) await session.query(`drop database ${name}`);
    });
    return (BARE_DROPS * 1000) / ms;
  };
  const before = await bareRate();
  const ms = await timed(async () => {
    await Promise.all(
      doomed.map(({ id, projectId }) =>
        expectOk(api.delete(`/api/v1/projects/${projectId}/branches/${id}?purge=true`)),
      ),
    );
    await untilGone(
      session,
      doomed.map(({ database }) => database),
    );
  });
  const bare = (before + (await bareRate())) / 2;
  return {
    name: `${TOGETHER} deletions together ÷ DROP DATABASE, a second`,
    measured: (TOGETHER * 1000) / ms / bare,
    limit: DELETIONS_LIMIT,
    atLeast: true,
    unit: '×',
  };
}

function ratios(times: Series, most: string): Goal[] {
  const few = (name: string) => [
    ...(times[`${name}, ${FEW}`] ?? []),
    ...(times[`${name}, ${FEW} again`] ?? []),
  ];
  const ratio = (name: string, to: string): number => median(times[to] ?? []) / median(few(name));
  return [
    {
      name: `bare clone at ${most} ÷ at ${FEW}`,
      measured: ratio('bare', `bare, ${most}`),
      limit: null,
      unit: '×',
    },
    ...OPERATIONS.flatMap((operation): Goal[] => [
      {
        name: `${operation} at ${most} ÷ at ${FEW}`,
        measured: ratio(operation, `${operation}, ${most}`),
        limit: LIMITED.includes(operation) ? LIMIT : null,
        unit: '×',
      },
      {
        name: `${operation} at ${most} in a project of 100 ÷ at ${FEW}`,
        measured: ratio(operation, `${operation}, ${most}, of 100`),
        limit: null,
        unit: '×',
      },
      {
        name: `${operation} at ${most} ÷ a bare clone`,
        measured: median(times[`${operation}, ${most}`] ?? []) / median(times[`bare, ${most}`] ?? []),
        limit: null,
        unit: '×',
      },
    ]),
  ];
}

const processes = ({ state }: Stack) => {
  const { gateway, agent, postgres, pgbouncer } = state.pids;
  return {
    workerd: gateway ?? 0,
    'the agent': agent ?? 0,
    PostgreSQL: postgres ?? 0,
    PgBouncer: pgbouncer ?? 0,
  };
};

const processorOf = (stack: Stack): Record<string, number> =>
  Object.fromEntries(Object.entries(processes(stack)).map(([name, pid]) => [name, processorMs(pid)]));

/** Bytes of the agent's and the pooler's memory, and of the rule files. */
function sizesOf(stack: Stack): Record<string, number> {
  const { 'the agent': agent, PgBouncer } = processes(stack);
  const resident = (pid: number) =>
    Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) * 1024;
  const names = new Set<string>(Object.values(RULE_FILES));
  const folder = stack.state.host_dir;
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => names.has(basename(path)))
    .map((path) => [basename(path), statSync(join(folder, path)).size] as const);
  return {
    'memory of the agent': resident(agent),
    'memory of PgBouncer': resident(PgBouncer),
    ...Object.fromEntries(files),
  };
}
