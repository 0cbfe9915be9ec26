import { createClient } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { startTripsGateway, type TripsGateway, tallyOf } from '../support/worker/trips-gateway.ts';
import type { Report } from './report.ts';
import { addSample, median, runInterleaved, type Series, timed } from './rounds.ts';

const ROUNDS = 9;
/** All rounds together are within the limit of a project. */
const READS = 40;
const FAR_MS = 120;
const REPLICA_MS = 5;
const LAG_MS = 2_000;

const METHOD = `The gateway in workerd for a client that is near a replica of D1 and far from everything else: a call of a Durable Object and of \
D1's primary is delayed by ${FAR_MS} ms, a call of the replica by ${REPLICA_MS} ms, and the replica is ${LAG_MS / 1000} s late. Reads of one \
project one after the other, ${READS} per round, interleaved in ${ROUNDS} rounds, within the specified limit of 1,000 a minute. "near": with the \
client package, which sends the bookmark of the last response. "newest": with \`primary\` in place of the bookmark, which reads D1's primary \
and so makes the one trip that every read made before. Trips are counted, not derived from times; two at the same time count as one. In each \
round the project is also renamed, and read immediately with and without the bookmark.`;

/** @param signal aborts it */
export async function measureFarClient(signal: AbortSignal, rounds = ROUNDS): Promise<Report> {
  const gateway = await startTripsGateway(FAR_MS, {
    REPLICA_LAG_MS: LAG_MS,
    REPLICA_DELAY_MS: REPLICA_MS,
    LIMIT_READS_PER_MINUTE: 1000,
  });
  try {
    const trips: Series = {};
    const missed: Series = {};
    const reads = await readsOf(gateway, signal);
    const each = (side: 'near' | 'newest') => async () => {
      let farTrips = 0;
      const time = await timed(async () => {
        for (let n = 0; n < READS; n++) farTrips += await reads[side]();
      });
      addSample(trips, side, farTrips / READS);
      return time / READS;
    };
    const rename = async () => {
      addSample(missed, 'reads right after a write', await reads.missedAfterWrite());
      // The next round is one of warm reads again.
      await new Promise((resolve) => setTimeout(resolve, LAG_MS + FAR_MS));
      await reads.near();
      return 0;
    };
    const { near, newest } = await runInterleaved(
      rounds,
      { near: each('near'), newest: each('newest'), rename },
      trips,
      missed,
    );
    const of = (series: Series, row: string) => series[row] ?? [];
    return {
      title: 'A client far from the objects',
      method: METHOD,
      goals: [
        { name: 'far trips of a warm read', measured: median(of(trips, 'near')), limit: 0.2, unit: 'trips' },
        {
          name: 'time of a warm read, near ÷ newest',
          measured: median(near) / median(newest),
          limit: 0.3,
          unit: '×',
        },
        {
          name: "reads that miss the client's own write",
          measured: of(missed, 'reads right after a write').reduce((sum, count) => sum + count, 0),
          limit: 0,
          unit: 'requests',
        },
      ],
      times: { 'One read': { near, newest } },
      counts: { 'Far trips of one read': trips, 'Reads that miss a write': missed },
    };
  } finally {
    await gateway.stop();
  }
}

async function readsOf(gateway: TripsGateway, signal: AbortSignal) {
  const { project_id = '' } = await gateway.makeThings();
  const path = `/api/v1/projects/${project_id}`;
  let last: Response | undefined;
  const { api } = createClient({
    url: gateway.url,
    token: gateway.token,
    fetch: async (request) => {
      last = await fetch(request);
      return last;
    },
  });
  const project = { params: { path: { project_id } } };
  const read = () => dataOf(api.GET('/api/v1/projects/{project_id}', project));
  /** Trips one after the other, without those to the replica alone. */
  const farTripsOf = (response: { headers: Headers }) =>
    new Set(tallyOf(response).trips.flatMap(({ to, after }) => (to.startsWith('REPLICA.') ? [] : [after])))
      .size;
  let renamed = 0;
  return {
    near: async () => {
      signal.throwIfAborted();
      await read();
      return last ? farTripsOf(last) : Number.NaN;
    },
    newest: async () => {
      signal.throwIfAborted();
      return farTripsOf(await gateway.api.get(path, { headers: { 'X-Branchgate-Bookmark': 'primary' } }));
    },
    /** @returns how many of two reads do not see the new name */
    missedAfterWrite: async () => {
      renamed += 1;
      const name = `Name ${renamed}`;
      await dataOf(api.PATCH('/api/v1/projects/{project_id}', { ...project, body: { name } }));
      const seen = [(await read()).name, (await gateway.api.get(path)).body.name];
      return seen.filter((found) => found !== name).length;
    },
  };
}
