import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { exportVariable, saveState, setOutput, setSecret } from '@actions/core';
import { urlOfChild } from '../cli/connection.ts';
import { withOtherAddress } from '../cli/other-address.ts';
import type { BranchgateClient, Schemas } from '../client/client.ts';
import { findBranch } from '../client/find-branch.ts';
import { ResponseError } from '../client/response-error.ts';
import { AUTHORITY_FILE } from '../shared/branch/verified-url.ts';
import { ActionError, type Inputs } from './inputs.ts';
import { info } from './log.ts';

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = `${BRANCHES}/{branch_ref}` as const;

/** What the comment shows of a branch. */
export interface ShownBranch {
  name: string;
  expiresAt: string | null;
  /** Null: not measured yet. */
  sizeBytes: number | null;
}

/** The ID of the branch to start from; null for `main`. @throws ActionError */
export async function sourceOf(client: BranchgateClient, { project, from }: Inputs): Promise<string | null> {
  if (from === null) return null;
  const found = await findBranch(client, project, from);
  if (!found) throw new ActionError(`There is no branch ${from} to start from.`);
  return found.id;
}

async function sizeOf({ api }: BranchgateClient, project_id: string, branch_ref: string) {
  const params = { path: { project_id, branch_ref } };
  // The branch is there; its size is only for the comment.
  const { data } = await api.GET(`${BRANCH}/metrics/summary`, { params }).catch(() => ({ data: undefined }));
  return data && data.observed_at !== null ? data.metrics.database_size_bytes : null;
}

/** The runner hides in the log what it is asked to hide. */
export function maskUrls({ database_url, direct_url }: Schemas['Credentials']): void {
  for (const url of [database_url, direct_url]) {
    setSecret(url);
    setSecret(decodeURIComponent(new URL(url).password));
  }
}

/** Whether the main step of this job has made a branch, for its last step. */
export const MADE = 'made';

/** Creates the branch, and sets the outputs. Every secret is masked before anything else can print it. */
export async function createBranch(client: BranchgateClient, inputs: Inputs): Promise<ShownBranch> {
  const source = await sourceOf(client, inputs);
  const made = await client.create(BRANCHES, {
    params: { path: { project_id: inputs.project } },
    body: {
      branch_name: inputs.branch,
      ttl_seconds: inputs.ttlSeconds,
      on_exists: inputs.onExists,
      allow: await withOtherAddress(inputs.url, inputs.allow),
      labels: inputs.labels,
      // Test runs open many connections.
      connection_attempts_per_minute: 'max',
      include: ['credentials'],
      data: inputs.data,
      ...(source !== null && { source_branch_id: source }),
    },
  });
  const { credentials } = made;
  if (!credentials) throw new ActionError('The response to the creation has no credentials.');
  const { ca_certificate } = credentials;
  const database_url = urlOfChild(credentials.database_url, credentials);
  const direct_url = urlOfChild(credentials.direct_url, credentials);
  for (const urls of [credentials, { ...credentials, database_url, direct_url }]) maskUrls(urls);
  saveState(MADE, true);
  const outputs = {
    branch: made.branch_name,
    'branch-id': made.id,
    'database-url': database_url,
    'direct-url': direct_url,
    'ca-certificate': ca_certificate ?? '',
    'expires-at': made.expires_at ?? '',
    created: String(made.created),
  };
  for (const [name, value] of Object.entries(outputs)) setOutput(name, value);
  if (ca_certificate !== null) trustAuthority(ca_certificate);
  info(
    `Branch ${made.branch_name} ${made.created ? 'was created' : 'existed'}; it expires at ${made.expires_at}.`,
  );
  const sizeBytes = await sizeOf(client, inputs.project, made.id);
  return { name: made.branch_name, expiresAt: made.expires_at, sizeBytes };
}

/** Later steps of the job verify the server: Node and libpq look for its authority in these variables. */
function trustAuthority(certificate: string): void {
  const file = join(process.env.RUNNER_TEMP ?? tmpdir(), AUTHORITY_FILE);
  writeFileSync(file, certificate);
  exportVariable('NODE_EXTRA_CA_CERTS', file);
  exportVariable('PGSSLROOTCERT', file);
}

/** Deletes the branch; it may have expired already. */
export async function deleteBranch({ api }: BranchgateClient, { project, branch }: Inputs): Promise<void> {
  const path = { project_id: project, branch_ref: branch };
  const { response, error } = await api.DELETE(BRANCH, { params: { path } });
  if (!response.ok && response.status !== 404) throw new ResponseError(response, error);
  info(response.ok ? `Branch ${branch} is deleted.` : `Branch ${branch} does not exist any more.`);
}
