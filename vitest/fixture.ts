import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { urlOfChild } from '../cli/connection.ts';
import { ME, withOtherAddress } from '../cli/other-address.ts';
import { type BranchgateClient, createClient, type Schemas } from '../client/client.ts';
import { type GoldenOptions, goldenBranch, goldenSnapshot } from './golden-branch.ts';
import { LeaseRenewal } from './lease-renewal.ts';

type Credentials = Schemas['Credentials'];

export interface FixtureOptions extends GoldenOptions {
  /** Number of branches: at least the number of workers. */
  workers: number;
  /** ID of the project. Default: BRANCHGATE_PROJECT. */
  project?: string;
  /** Address of the gateway. Default: BRANCHGATE_URL. */
  url?: string;
  /** Seconds until the branches of a killed run are deleted. Default: 60. */
  leaseSeconds?: number;
}

/** What the set-up passes on to the workers, which inherit the environment. */
interface Passed {
  url: string;
  project: string;
  source: { snapshot_id: string } | { source_branch_id: string };
  /** Both addresses of this computer. */
  allow: string[];
  leaseSeconds: number;
  branches: Credentials[];
}

const PASSED = 'BRANCHGATE_TEST_BRANCHES';
const LEASE_SECONDS = 60;
const BRANCHES = '/api/v1/projects/{project_id}/branches';

/** @throws Error that names the missing setting: tests never fall back to another database */
function required(value: string | undefined, name: string): string {
  if (!value) throw new Error(`${name} is missing: set it, so that the tests get branches`);
  return value;
}

const clientFor = (url: string): BranchgateClient => {
  const { BRANCHGATE_API_KEY, BRANCHGATE_TOKEN } = process.env;
  return createClient({ url, token: required(BRANCHGATE_API_KEY || BRANCHGATE_TOKEN, 'BRANCHGATE_API_KEY') });
};

/**
 * The global set-up of Vitest or Jest: migrates once for each content of the migrations, and makes a branch
 * for each worker with one call.
 * @returns deletes the branches
 */
export function branchSetup(options: FixtureOptions): () => Promise<() => Promise<void>> {
  return async () => {
    const url = required(options.url ?? process.env.BRANCHGATE_URL, 'BRANCHGATE_URL');
    const project = required(options.project ?? process.env.BRANCHGATE_PROJECT, 'BRANCHGATE_PROJECT');
    const leaseSeconds = options.leaseSeconds ?? LEASE_SECONDS;
    const client = clientFor(url);
    const allow = await withOtherAddress(url, [ME]);
    const authority = new AuthorityFile();
    const migrate: FixtureOptions['migrate'] = (credentials) => {
      authority.trust(credentials);
      return options.migrate(verified(credentials));
    };
    const golden = await goldenBranch(client, project, allow, { ...options, migrate });
    const snapshot_id = await goldenSnapshot(client, project, golden, options.spares);
    const source = snapshot_id === null ? { source_branch_id: golden } : { snapshot_id };
    const { branches } = await client.create(`${BRANCHES}/batch`, {
      params: { path: { project_id: project } },
      body: {
        count: options.workers,
        name_prefix: `test-${randomBytes(4).toString('hex')}-`,
        ...source,
        lease_seconds: leaseSeconds,
        connection_attempts_per_minute: 'max',
        allow,
        include: ['credentials'],
        labels: { purpose: 'tests' },
      },
    });
    const ids = branches.map(({ id }) => id);
    const renewal = new LeaseRenewal(client, project, ids, leaseSeconds);
    const credentials = branches.flatMap((branch) => branch.credentials ?? []);
    const passed: Passed = { url, project, source, allow, leaseSeconds, branches: credentials };
    process.env[PASSED] = JSON.stringify(passed);
    for (const each of credentials.slice(0, 1)) authority.trust(each);
    return async () => {
      authority.remove();
      await renewal.end();
    };
  };
}

/** The authority of the host in a file, for libpq and for the Node processes that this one starts. */
class AuthorityFile {
  #folder: string | null = null;

  trust({ ca_certificate: certificate }: Credentials): void {
    if (certificate === null) return;
    this.#folder ??= mkdtempSync(join(tmpdir(), 'branchgate-'));
    const file = join(this.#folder, 'ca.pem');
    writeFileSync(file, certificate);
    process.env.PGSSLROOTCERT = file;
    process.env.NODE_EXTRA_CA_CERTS = file;
  }

  remove(): void {
    if (this.#folder !== null) rmSync(this.#folder, { recursive: true, force: true });
  }
}

const verified = (credentials: Credentials): Credentials => ({
  ...credentials,
  database_url: urlOfChild(credentials.database_url, credentials),
  direct_url: urlOfChild(credentials.direct_url, credentials),
});

function passedOn(): Passed {
  const text = required(process.env[PASSED], 'The set-up of the branches (branchSetup as globalSetup)');
  return JSON.parse(text) as Passed;
}

/** Number of this worker, from 1. */
function workerNumber(): number {
  const { VITEST_POOL_ID, JEST_WORKER_ID } = process.env;
  return Number(VITEST_POOL_ID ?? JEST_WORKER_ID ?? 1);
}

/** How to connect to a branch: URLs, and the same as options of node-postgres, which verify the server. */
export interface BranchConnection {
  branch_name: string;
  database_url: string;
  direct_url: string;
  ca_certificate: string | null;
  /** For `new pg.Client(…)`, directly and as the owner. */
  direct: ConnectionOptions;
  /** For `new pg.Client(…)`, through the pooler. */
  pooled: ConnectionOptions;
}

export interface ConnectionOptions {
  host: string;
  port: number;
  user: string;
  password: string;
  database: string;
  ssl: { ca?: string };
}

function optionsOf(given: string, { ca_certificate: ca }: Credentials): ConnectionOptions {
  const url = new URL(given);
  return {
    host: url.hostname,
    port: Number(url.port),
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
    database: decodeURIComponent(url.pathname.slice(1)),
    ssl: ca === null ? {} : { ca },
  };
}

const connectionOf = (credentials: Credentials): BranchConnection => ({
  branch_name: credentials.branch_name,
  database_url: verified(credentials).database_url,
  direct_url: verified(credentials).direct_url,
  ca_certificate: credentials.ca_certificate,
  direct: optionsOf(credentials.direct_url, credentials),
  pooled: optionsOf(credentials.database_url, credentials),
});

/**
 * The branch of this worker, which its test files use one after the other.
 * @throws Error if there are too few
 */
export function workerBranch(): BranchConnection {
  const { branches } = passedOn();
  const credentials = branches[workerNumber() - 1];
  if (!credentials)
    throw new Error(
      `there are ${branches.length} branches, and this is worker ${workerNumber()}: raise \`workers\``,
    );
  return connectionOf(credentials);
}

/** A branch for one test file, with the content of the migrations. Call `end` after its tests. */
export async function branchPerFile(): Promise<BranchConnection & { end: () => Promise<void> }> {
  const { url, project, source, allow, leaseSeconds } = passedOn();
  const client = clientFor(url);
  const { id, credentials } = await client.create(BRANCHES, {
    params: { path: { project_id: project } },
    body: {
      branch_name: `file-${randomBytes(6).toString('hex')}`,
      ...source,
      lease_seconds: leaseSeconds,
      connection_attempts_per_minute: 'max',
      allow,
      include: ['credentials'],
      labels: { purpose: 'tests' },
    },
  });
  if (!credentials) throw new Error('the response to the creation has no credentials');
  const renewal = new LeaseRenewal(client, project, [id], leaseSeconds);
  return { ...connectionOf(credentials), end: () => renewal.end() };
}
