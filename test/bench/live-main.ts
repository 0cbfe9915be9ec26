import { setTimeout as sleep } from 'node:timers/promises';
import { Api } from '../support/api.ts';
import { connect } from '../support/database.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, timeBareClone } from './bare-clone.ts';
import { addDurations, creationParts } from './creation-steps.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const MEGABYTES = 20;
const ROUNDS = 7;
const LIMIT = 1.5;
/** Longer than the time without a change after which a branch gets a standing snapshot, and than its spares take. */
const REST_MS = 3_000;

const METHOD = `Two mains of about ${MEGABYTES + 8} MB on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all on \
this machine. Interleaved, ${ROUNDS} rounds after a first one that is discarded, with ${REST_MS / 1000} s before each side: a bare clone of a main without sessions \
(\`CREATE DATABASE … STRATEGY FILE_COPY\`, \`file_copy_method = clone\`), a branch of a main in which a direct client reads, until its 201, and a branch of \
the same main after the client has written a row. The client connects again when its session is ended, and those sessions are counted.`;

/** Measures branches of a main with a direct client that reads. @param signal aborts it */
export const measureLiveMain = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, UNLIMITED);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const bare = await filledMain(api, 'Bare', MEGABYTES);
  const { project, main } = await filledMain(api, 'Live', MEGABYTES);
  const client = await DirectClient.open(main.direct_url);
  const steps: Series = {};
  const ended: Series = { 'unchanged main': [], 'written main': [] };
  let made = 0;
  const branch = async (name: string) => {
    await sleep(REST_MS);
    await client.run('select count(*) from pg_class');
    const before = client.opened;
    made += 1;
    let id = '';
    const from = Date.now();
    const ms = await timed(async () => {
      id = (await api.branch(project.id, `live-${made}`)).id;
    });
    const call = { from, to: Date.now() };
    if (name === 'unchanged main') addDurations(steps, await creationParts(api, project.id, [call]));
    await client.run('select 1');
    ended[name]?.push(client.opened - before);
    await purgeBranch(api, project.id, id);
    return ms;
  };
  try {
    const times = await runInterleaved(
      ROUNDS,
      {
        'bare clone': () => sleep(REST_MS).then(() => timeBareClone(session, bare.main.database)),
        'branch, unchanged main': () => branch('unchanged main'),
        'branch, written main': async () => {
          await client.run('create table if not exists written (at timestamptz)');
          await client.run('insert into written values (now())');
          const ms = await branch('written main');
          // The next round has an unchanged main again, with a snapshot: two creations, half a minute after the last try.
          await sleep(30_000);
          for (let n = 0; n < 2; n++) await branch('');
          return ms;
        },
      },
      steps,
      ended,
    );
    const endedOf = (name: string) => (ended[name] ?? []).reduce((sum, count) => sum + count, 0);
    return {
      title: 'Branches of a main with a direct client',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        {
          name: 'a branch of an unchanged main ÷ a bare clone',
          measured: medianRatio(times['branch, unchanged main'], times['bare clone']),
          limit: LIMIT,
          unit: '×',
        },
        {
          name: 'sessions of an unchanged main that were ended',
          measured: endedOf('unchanged main'),
          limit: 0,
          unit: 'sessions',
        },
        {
          name: 'a branch of a written main ÷ a bare clone',
          measured: medianRatio(times['branch, written main'], times['bare clone']),
          limit: null,
          unit: '×',
        },
        {
          name: 'sessions of a written main that were ended',
          measured: endedOf('written main'),
          limit: null,
          unit: 'sessions',
        },
      ],
      times: { Durations: times, 'Parts of a branch of an unchanged main': steps },
    };
  } finally {
    await client.close();
    await session.end();
  }
}

/** A direct session that is opened again when it was ended. */
class DirectClient {
  readonly #url: string;
  #session: Awaited<ReturnType<typeof connect>>;
  opened = 1;

  static async open(url: string): Promise<DirectClient> {
    return new DirectClient(url, await connect(url));
  }

  private constructor(url: string, session: Awaited<ReturnType<typeof connect>>) {
    this.#url = url;
    this.#session = session;
  }

  async run(sql: string): Promise<void> {
    try {
      await this.#session.query(sql);
    } catch {
      this.#session = await connect(this.#url);
      this.opened += 1;
      await this.#session.query(sql);
    }
  }

  close = () => this.#session.end();
}
