import { Socket } from 'node:net';
import pg from 'pg';
import { type BranchRole, loginName } from '../../../shared/branch/login.ts';
import type { TestHost } from './host.ts';
import type { Branch, Port } from './host-project.ts';

export const HERE = '127.0.0.1';
/** Another address of the loopback network, which no rule of a test admits. */
export const OUTSIDE = '127.0.0.2';

export type Outcome = 'in' | 'wrong password' | 'refused' | 'full';

/** Messages of both servers. */
const OUTCOMES: [RegExp, Outcome][] = [
  [/^(password|SASL) authentication failed/, 'wrong password'],
  [/^(pg_hba\.conf rejects connection|no pg_hba\.conf entry|login rejected)/, 'refused'],
  [/^(no more connections allowed \(max_client_conn\)|too many connections for database)/, 'full'],
];

export interface Target {
  port: number;
  user: string;
  password: string;
  database: string;
}

export const targetOf = (
  { settings }: TestHost,
  port: Port,
  branch: Branch,
  role: BranchRole = 'read_write',
): Target => ({
  port: port === 'direct' ? settings.POSTGRES_PORT : settings.POOLER_PORT,
  user: loginName(branch.branch_id, role),
  password: branch.passwords[role],
  database: branch.database,
});

/** The target of a branch's connection URL. */
export function targetOfUrl(url: string): Target {
  const { port, username, password, pathname } = new URL(url);
  return {
    port: Number(port),
    user: username,
    password: decodeURIComponent(password),
    database: pathname.slice(1),
  };
}

/** A client that connects from one of this machine's addresses. The caller ends it. */
export async function connectFrom(address: string, target: Target): Promise<pg.Client> {
  const client = new pg.Client({
    ...target,
    host: HERE,
    ssl: { rejectUnauthorized: false },
    connectionTimeoutMillis: 30_000,
    stream: () => new SocketFrom(address),
  });
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** Tries to connect once. @returns the outcome @throws an error that is none of the expected ones */
export async function attempt(target: Target, address = HERE): Promise<Outcome> {
  try {
    const client = await connectFrom(address, target);
    await client.end();
    return 'in';
  } catch (error) {
    const text = error instanceof Error ? error.message : '';
    const [, outcome] = OUTCOMES.find(([said]) => said.test(text)) ?? [];
    if (!outcome) throw error;
    return outcome;
  }
}

interface Course {
  address?: string;
  /** Delays the next attempt. By default there is no delay. */
  delay?: (outcome: Outcome) => Promise<unknown>;
}

/** Makes `count` attempts, one after another. */
export async function attempts(
  count: number,
  target: Target,
  { address, delay }: Course = {},
): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  while (outcomes.length < count) {
    const outcome = await attempt(target, address);
    outcomes.push(outcome);
    await delay?.(outcome);
  }
  return outcomes;
}

/** Number of attempts that were not refused, so that their password was checked. */
export const tried = (outcomes: readonly Outcome[]) =>
  outcomes.filter((outcome) => outcome === 'in' || outcome === 'wrong password').length;

class SocketFrom extends Socket {
  readonly #address: string;

  constructor(address: string) {
    super();
    this.#address = address;
  }

  override connect(...[port, host]: unknown[]): this {
    return super.connect({ port: Number(port), host: String(host), localAddress: this.#address });
  }
}
