import { startTripsGateway, type TripsGateway } from '../support/worker/trips-gateway.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 15;
const NEAR_MS = 50;
const FAR_MS = 150;
/** What a timer and a busy machine may add to a round trip. */
const SLACK = 1.2;

const METHOD = `The gateway in workerd, where every call of a Durable Object and of D1 is delayed by ${NEAR_MS} ms, and in another one \
by ${FAR_MS} ms, including the calls between objects. The same requests interleaved in ${ROUNDS} rounds, warm. The \
additional time of a request in the second gateway, divided by the ${FAR_MS - NEAR_MS} ms, is the number of its \
sequential round trips. A host that responds immediately is one of them. \`test/edge/routes/trips.worker.test.ts\` \
counts, instead of timing, that no operation makes more round trips than it should.`;

/** @param signal aborts it */
export async function measureEdgeLatency(signal: AbortSignal): Promise<Report> {
  const near = await startTripsGateway(NEAR_MS);
  const far = await startTripsGateway(FAR_MS);
  try {
    const requests = [await requestsOf(near, signal), await requestsOf(far, signal)] as const;
    const times = await runInterleaved(ROUNDS, {
      [`a project, ${NEAR_MS} ms`]: requests[0].project,
      [`a project, ${FAR_MS} ms`]: requests[1].project,
      [`usage, ${NEAR_MS} ms`]: requests[0].usage,
      [`usage, ${FAR_MS} ms`]: requests[1].usage,
      [`rows, ${NEAR_MS} ms`]: requests[0].rows,
      [`rows, ${FAR_MS} ms`]: requests[1].rows,
    });
    const trips = (name: 'a project' | 'usage' | 'rows', expected: number): Goal => {
      const at = (delay: typeof NEAR_MS | typeof FAR_MS) => median(times[`${name}, ${delay} ms`]);
      return {
        name: `${name}: sequential round trips`,
        measured: (at(FAR_MS) - at(NEAR_MS)) / (FAR_MS - NEAR_MS),
        limit: expected * SLACK,
        unit: 'trips',
      };
    };
    return {
      title: 'Latency at the edge',
      method: METHOD,
      goals: [trips('a project', 1), trips('usage', 1), trips('rows', 2)],
      times: { 'One request': times },
    };
  } finally {
    await near.stop();
    await far.stop();
  }
}

async function requestsOf(gateway: TripsGateway, signal: AbortSignal) {
  const { project_id, branch_ref } = await gateway.makeThings();
  const project = `/api/v1/projects/${project_id}`;
  const get = (path: string) => async () => {
    signal.throwIfAborted();
    return timed(() => gateway.api.get(path));
  };
  return {
    project: get(project),
    usage: get(`${project}/usage`),
    rows: get(`${project}/branches/${branch_ref}/tables/book/rows`),
  };
}
