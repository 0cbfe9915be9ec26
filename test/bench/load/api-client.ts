import { type Client, rest } from './client.ts';

/** Where one client works. */
export interface Seat {
  client: Client;
  projectId: string;
  /** Number of the client, so that no two write the same. */
  number: number;
}

/** Fewer rows than `account` has. */
const ROWS = 7_000;

const projectOf = ({ projectId }: Seat) => `/api/v1/projects/${projectId}`;
const mainOf = (seat: Seat) => `${projectOf(seat)}/branches/main`;
const upTo = (most: number) => Math.floor(Math.random() * most);

const READS: ((seat: Seat) => string)[] = [
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

async function changeCell(seat: Seat): Promise<void> {
  const { client, number } = seat;
  const body = {
    primary_key: 'id',
    id: 1 + upTo(ROWS),
    column: 'filler',
    value: `${number} ${Date.now()}`,
  };
  await client.ask({ method: 'PATCH', path: `${mainOf(seat)}/tables/account/rows`, body });
}

async function renameProject(seat: Seat): Promise<void> {
  await seat.client.ask({
    method: 'PATCH',
    path: projectOf(seat),
    body: { name: `Renamed by ${seat.number}` },
  });
}

/** An address of those for documentation (RFC 5737): nobody comes from there. */
async function changeRules(seat: Seat): Promise<void> {
  const { client, number } = seat;
  const path = `${projectOf(seat)}/network-rules`;
  const rule = await client.ask<{ id: string }>({
    method: 'POST',
    path,
    body: { cidr: `203.0.113.${number}/32` },
  });
  if (rule) await client.ask({ method: 'DELETE', path: `${path}/${rule.id}` });
}

const WRITES = [changeCell, changeCell, changeCell, renameProject, changeRules];

const oneOf = <T>(choices: T[]): T => choices[upTo(choices.length)] as T;

async function work(seat: Seat, pauseMs: number, step: () => Promise<unknown>): Promise<void> {
  const { ending } = seat.client;
  while (!ending.aborted) {
    await rest(2 * pauseMs * Math.random(), ending);
    await step();
  }
}

export const readOn = (seat: Seat, pauseMs: number): Promise<void> =>
  work(seat, pauseMs, () => seat.client.get(oneOf(READS)(seat)));

export const writeOn = (seat: Seat, pauseMs: number): Promise<void> =>
  work(seat, pauseMs, () => oneOf(WRITES)(seat));
