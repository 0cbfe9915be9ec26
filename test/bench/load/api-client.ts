import { type Client, pause } from './client.ts';

/** Where one client works. */
export interface Assignment {
  client: Client;
  projectId: string;
  /** Number of the client, so that no two write the same. */
  number: number;
}

/** Fewer rows than `account` has. */
const ROWS = 7_000;

const projectOf = ({ projectId }: Assignment) => `/api/v1/projects/${projectId}`;
const mainOf = (seat: Assignment) => `${projectOf(seat)}/branches/main`;
const upTo = (most: number) => Math.floor(Math.random() * most);

const READS: ((seat: Assignment) => string)[] = [
  () => '/api/v1/me',
  () => '/api/v1/projects',
  projectOf,
  (seat) => `${projectOf(seat)}/branches`,
  (seat) => `${projectOf(seat)}/branches/lookup?name=main`,
  (seat) => `${projectOf(seat)}/network-rules`,
  (seat) => `${projectOf(seat)}/jobs?limit=20`,
  (seat) => `${projectOf(seat)}/usage`,
  (seat) => `/api/v1/audit-events?project_id=${seat.projectId}&limit=20`,
  (seat) => `${mainOf(seat)}/metrics/summary`,
  (seat) => `${mainOf(seat)}/metrics?metric=active_connections`,
  (seat) => `${mainOf(seat)}/tables`,
  (seat) => `${mainOf(seat)}/tables/account/rows?limit=50&offset=${upTo(ROWS)}`,
  (seat) => `${mainOf(seat)}/tables/teller/rows?limit=20`,
];

async function changeCell(seat: Assignment): Promise<void> {
  const { client, number } = seat;
  const body = {
    primary_key: 'id',
    id: 1 + upTo(ROWS),
    column: 'filler',
    value: `${number} ${Date.now()}`,
  };
  await client.request({ method: 'PATCH', path: `${mainOf(seat)}/tables/account/rows`, body });
}

async function renameProject(seat: Assignment): Promise<void> {
  await seat.client.request({
    method: 'PATCH',
    path: projectOf(seat),
    body: { name: `Renamed by ${seat.number}` },
  });
}

/** An address of those for documentation (RFC 5737): nobody comes from there. */
async function changeRules(seat: Assignment): Promise<void> {
  const { client, number } = seat;
  const path = `${projectOf(seat)}/network-rules`;
  const rule = await client.request<{ id: string }>({
    method: 'POST',
    path,
    body: { cidr: `203.0.113.${number}/32` },
  });
  if (rule) await client.request({ method: 'DELETE', path: `${path}/${rule.id}` });
}

const WRITES = [changeCell, changeCell, changeCell, renameProject, changeRules];

const oneOf = <T>(choices: T[]): T => choices[upTo(choices.length)] as T;

async function work(seat: Assignment, pauseMs: number, step: () => Promise<unknown>): Promise<void> {
  const { ending } = seat.client;
  while (!ending.aborted) {
    await pause(2 * pauseMs * Math.random(), ending);
    await step();
  }
}

export const runReader = (seat: Assignment, pauseMs: number): Promise<void> =>
  work(seat, pauseMs, () => seat.client.get(oneOf(READS)(seat)));

export const runWriter = (seat: Assignment, pauseMs: number): Promise<void> =>
  work(seat, pauseMs, () => oneOf(WRITES)(seat));
