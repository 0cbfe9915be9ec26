import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import { UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import { raiseCaps } from './extents.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, median, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const MEGABYTES = 20;
const LENGTH = 16;
const ROUNDS = 5;
/** Rows that are updated in each database before the next one is made of it. */
const UPDATES = 100;

const METHOD = `The shape of the create sweep of BranchBench (arXiv 2604.17180), with our own client: a main of about ${MEGABYTES + 8} MB on \
XFS with reflink in a loopback file. *Chain*: ${LENGTH} databases, each made of the one before, in which ${UPDATES} rows were \
updated first. *Fan*: ${LENGTH} databases of main. By \`POST …/branches\`, until the 201, and by \`CREATE DATABASE … STRATEGY \
FILE_COPY\` with \`file_copy_method = clone\` in one session. Interleaved in ${ROUNDS} rounds after a first one that is \
discarded; the median creation of each round is taken. Everything runs on this machine. For comparison, the medians that \
BranchBench publishes for a chain of 16: Neon 160 ms, Xata 42,500 ms, Tiger 51,400 ms, Dolt 9.5 ms. They were measured \
elsewhere, over a network and on other hardware, so they only show orders of magnitude.`;

/** Measures branches of branches. @param signal aborts it */
export const measureBranchChain = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, UNLIMITED);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  try {
    const filled = await filledMain(api, 'Chain', MEGABYTES);
    await raiseCaps(stack, api, filled);
    const { project, main } = filled;
    const all: Series = {};
    const firstAndLast: Series = {};
    const update = (url: string) =>
      query(url, 'update account set balance = balance + 1 where id <= $1', [UPDATES]);

    /** @returns the median creation */
    const sweep = async (name: string, make: (n: number) => Promise<void>, prepare = async () => {}) => {
      const times: number[] = [];
      for (let n = 1; n <= LENGTH; n++) {
        await prepare();
        times.push(await timed(() => make(n)));
      }
      for (const ms of times) addSample(all, name, ms);
      addSample(firstAndLast, `${name}, first`, times[0] ?? 0);
      addSample(firstAndLast, `${name}, last`, times.at(-1) ?? 0);
      return median(times);
    };
    const branches = (isChain: boolean) => async (name: string) => {
      const made: string[] = [];
      let source = project.main_branch.id;
      let url = main.direct_url;
      const ms = await sweep(
        name,
        async (n) => {
          const options = { source_branch_id: source, include: ['credentials'] };
          const branch = await api.branch(project.id, `round-${n}`, options);
          made.push(branch.id);
          if (!isChain) return;
          source = branch.id;
          url = (branch as unknown as { credentials: { direct_url: string } }).credentials.direct_url;
        },
        async () => {
          await update(url);
        },
      );
      for (const id of made.toReversed()) await purgeBranch(api, project.id, id);
      return ms;
    };
    const bare = (isChain: boolean) => async (name: string) => {
      let source = main.database;
      const ms = await sweep(
        name,
        async (n) => {
          await makeBareClone(session, source, `bare_${n}`);
          if (isChain) source = `bare_${n}`;
        },
        async () => {
          if (source === main.database) await update(main.direct_url);
          await endSessions(session, source);
        },
      );
      for (let n = 1; n <= LENGTH; n++) await session.query(`drop database bare_${n}`);
      return ms;
    };
    const medians = await runInterleaved(
      ROUNDS,
      {
        'chain, bare clones': bare(true),
        'chain, branches': branches(true),
        'fan, bare clones': bare(false),
        'fan, branches': branches(false),
      },
      all,
      firstAndLast,
    );
    const ratio = (shape: 'chain' | 'fan') => ({
      name: `a branch ÷ a bare clone, ${shape} of ${LENGTH}`,
      measured: median(medians[`${shape}, branches`]) / median(medians[`${shape}, bare clones`]),
      limit: null,
      unit: '×' as const,
    });
    const last = firstAndLast['chain, branches, last'] ?? [];
    const first = firstAndLast['chain, branches, first'] ?? [];
    return {
      title: 'Branches of branches',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        ratio('chain'),
        ratio('fan'),
        {
          name: `branch ${LENGTH} of the chain ÷ the first`,
          measured: median(last) / median(first),
          limit: null,
          unit: '×',
        },
      ],
      times: { 'Median creation of a round': medians, 'Every creation': all, 'By depth': firstAndLast },
    };
  } finally {
    await session.end();
  }
}
