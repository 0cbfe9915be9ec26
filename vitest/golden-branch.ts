import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { globSync } from 'tinyglobby';
import type { BranchgateClient, Schemas } from '../client/client.ts';
import { findBranch, findFreshSnapshot } from '../client/find-branch.ts';
import { dataOf, ResponseError } from '../client/response-error.ts';
import { LeaseRenewal } from './lease-renewal.ts';

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';
const SNAPSHOTS = '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots';
const SNAPSHOT = '/api/v1/projects/{project_id}/snapshots/{snapshot_id}';
/** Each use extends its life, so that it expires a week after the last one. */
const GOLDEN_TTL_SECONDS = 7 * 86_400;
const LEASE_SECONDS = 120;
/** Its life cannot be extended, so another one is taken before it ends. */
const SNAPSHOT_TTL_SECONDS = 86_400;
const RUN_AT_MOST_MS = 3 * 3_600_000;

export interface GoldenOptions {
  /** Name or ID of the branch that migrations start from. Default: `main`. */
  from?: string;
  /**
   * What the branches have of it: everything, masked by the policy of the project, or the schema without rows.
   * Default: `full`.
   */
  data?: Schemas['Branch']['data'];
  /** Patterns of the files that decide the content: migrations and seeds. */
  migrations: readonly string[];
  /** Clones of the migrated branch that the host keeps ready. Default: as many as were used in the last minute, at most 8. */
  spares?: number;
  /** Applies the migrations. @throws to stop the tests */
  migrate: (credentials: Schemas['Credentials']) => Promise<void> | void;
}

/** Names the content of the files, whatever their order and folder. */
function hashOf(patterns: readonly string[], cwd = process.cwd()): string {
  const hash = createHash('sha256');
  const files = [...new Set(globSync(patterns, { cwd, expandDirectories: false, dot: true }))].sort();
  if (files.length === 0) throw new Error(`no file matches ${patterns.join(', ')}: correct \`migrations\``);
  for (const file of files) {
    const content = readFileSync(resolve(cwd, file));
    hash.update(`${file}\0${content.length}\0`).update(content);
  }
  return hash.digest('hex').slice(0, 12);
}

/**
 * The end of the name of a branch with other data than its source. A new version of the masking policy makes
 * another branch, because it may mask more.
 */
async function endingFor({ api }: BranchgateClient, project_id: string, data: GoldenOptions['data']) {
  if (data !== 'masked') return data === 'none' ? '-none' : '';
  const masking = '/api/v1/projects/{project_id}/masking';
  const { version } = await dataOf(api.GET(masking, { params: { path: { project_id } } }));
  return `-masked-${version}`;
}

/**
 * The branch with the migrations applied, made once for each content of their files. It gets its name when it
 * is complete, so an interrupted run leaves nothing that looks like it.
 * @param allow the networks that may connect while it migrates
 */
export async function goldenBranch(
  client: BranchgateClient,
  projectId: string,
  allow: string[],
  { from = 'main', data = 'full', migrations, migrate }: GoldenOptions,
): Promise<string> {
  const source = await findBranch(client, projectId, from);
  if (!source) throw new Error(`the project has no branch ${from}`);
  // Branches of different sources differ, even with the same migrations.
  const ending = await endingFor(client, projectId, data);
  const name = `golden-${hashOf(migrations)}-${source.id.slice(0, 8)}${ending}`;
  const existing = await findBranch(client, projectId, name);
  if (existing?.status === 'active') {
    const params = { path: { project_id: projectId, branch_ref: existing.id } };
    await dataOf(client.api.PATCH(BRANCH, { params, body: { ttl_seconds: GOLDEN_TTL_SECONDS } }));
    return existing.id;
  }
  const path = { project_id: projectId };
  // A clone of the branch would end the direct sessions of those who use it. Other data has a snapshot of its own.
  const snapshot = data === 'full' ? await findFreshSnapshot(client, projectId, source.id) : null;
  const draft = await client.create(BRANCHES, {
    params: { path },
    body: {
      branch_name: `draft-${randomBytes(5).toString('hex')}`,
      ...(snapshot === null ? { source_branch_id: source.id } : { snapshot_id: snapshot }),
      data,
      lease_seconds: LEASE_SECONDS,
      connection_attempts_per_minute: 'max',
      allow,
      include: ['credentials'],
      labels: { purpose: 'tests' },
    },
  });
  const renewal = new LeaseRenewal(client, projectId, [draft.id], LEASE_SECONDS);
  try {
    if (!draft.credentials) throw new Error('the response to the creation has no credentials');
    await migrate(draft.credentials);
    const golden = { branch_name: name, source_branch_id: draft.id, ttl_seconds: GOLDEN_TTL_SECONDS };
    const body = { ...golden, labels: { purpose: 'tests' } };
    return (await client.create(BRANCHES, { params: { path }, body })).id;
  } catch (error) {
    // Another run has made it meanwhile.
    const other = isConflict(error) ? await findBranch(client, projectId, name) : null;
    if (other) return other.id;
    throw error;
  } finally {
    await renewal.end();
  }
}

/**
 * A snapshot of the golden branch, which nobody writes to: the host keeps clones of a snapshot ready.
 * @returns null if this key may not take one, or the project has as many as it can have
 */
export async function goldenSnapshot(
  client: BranchgateClient,
  project_id: string,
  branch_ref: string,
  spares: number | undefined,
): Promise<string | null> {
  const params = { path: { project_id, branch_ref } };
  try {
    const { snapshots } = await dataOf(client.api.GET(SNAPSHOTS, { params }));
    const usedUntil = Date.now() + RUN_AT_MOST_MS;
    const kept = snapshots.find(
      ({ expires_at }) => expires_at !== null && Date.parse(expires_at) > usedUntil,
    );
    const body = { name: 'golden', ttl_seconds: SNAPSHOT_TTL_SECONDS };
    const { id } = kept ?? (await client.create(SNAPSHOTS, { params, body }));
    if (spares !== undefined)
      await dataOf(
        client.api.PATCH(SNAPSHOT, { params: { path: { project_id, snapshot_id: id } }, body: { spares } }),
      );
    return id;
  } catch (error) {
    if (error instanceof ResponseError) return null;
    throw error;
  }
}

const isConflict = (error: unknown) => error instanceof ResponseError && error.code === 'BRANCH_EXISTS';
