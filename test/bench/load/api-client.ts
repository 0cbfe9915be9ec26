import { type Client, pause } from './client.ts';

/** One client and the project it works on. */
export interface Assignment {
  client: Client;
  projectId: string;
  /** Number of the client, so that no two write the same value. */
  number: number;
}

/** Fewer rows than `account` has. */
const ROWS = 7_000;

const projectOf = ({ projectId }: Assignment) => `/api/v1/projects/${projectId}`;
const mainOf = (assignment: Assignment) => `${projectOf(assignment)}/branches/main`;
const upTo = (most: number) => Math.floor(Math.random() * most);

const READS: ((assignment: Assignment) => string)[] = [
  () => '/api/v1/me',
  () => '/api/v1/projects',
  projectOf,
  (assignment) => `${projectOf(assignment)}/branches`,
  (assignment) => `${projectOf(assignment)}/branches/lookup?name=main`,
  (assignment) => `${projectOf(assignment)}/network-rules`,
  (assignment) => `${projectOf(assignment)}/jobs?limit=20`,
  (assignment) => `${projectOf(assignment)}/usage`,
  (assignment) => `/api/v1/audit-events?project_id=${assignment.projectId}&limit=20`,
  (assignment) => `${mainOf(assignment)}/metrics/summary`,
  (assignment) => `${mainOf(assignment)}/metrics?metric=active_connections`,
  (assignment) => `${mainOf(assignment)}/tables`,
  (assignment) => `${mainOf(assignment)}/tables/account/rows?limit=50&offset=${upTo(ROWS)}`,
  (assignment) => `${mainOf(assignment)}/tables/teller/rows?limit=20`,
];

async function changeCell(assignment: Assignment): Promise<void> {
  const { client, number } = assignment;
  const body = {
    primary_key: 'id',
    id: 1 + upTo(ROWS),
    column: 'filler',
    value: `${number} ${Date.now()}`,
  };
  await client.request({ method: 'PATCH', path: `${mainOf(assignment)}/tables/account/rows`, body });
}

async function renameProject(assignment: Assignment): Promise<void> {
  await assignment.client.request({
    method: 'PATCH',
    path: projectOf(assignment),
    body: { name: `Renamed by ${assignment.number}` },
  });
}

/** Uses an address reserved for documentation (RFC 5737), from which no client connects. */
async function changeRules(assignment: Assignment): Promise<void> {
  const { client, number } = assignment;
  const path = `${projectOf(assignment)}/network-rules`;
  const rule = await client.request<{ id: string }>({
    method: 'POST',
    path,
    body: { cidr: `203.0.113.${number}/32` },
  });
  if (rule) await client.request({ method: 'DELETE', path: `${path}/${rule.id}` });
}

const WRITES = [changeCell, changeCell, changeCell, renameProject, changeRules];

const oneOf = <T>(choices: T[]): T => choices[upTo(choices.length)] as T;

async function work(assignment: Assignment, pauseMs: number, step: () => Promise<unknown>): Promise<void> {
  const { ending } = assignment.client;
  while (!ending.aborted) {
    await pause(2 * pauseMs * Math.random(), ending);
    await step();
  }
}

export const runReader = (assignment: Assignment, pauseMs: number): Promise<void> =>
  work(assignment, pauseMs, () => assignment.client.get(oneOf(READS)(assignment)));

export const runWriter = (assignment: Assignment, pauseMs: number): Promise<void> =>
  work(assignment, pauseMs, () => oneOf(WRITES)(assignment));
