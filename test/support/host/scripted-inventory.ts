import { createHash } from 'node:crypto';
import { pageOf } from '../../../agent/operations/inventory.ts';
import { digestGroups, type Holdings } from '../../../shared/protocol/inventory-digest.ts';
import { OPERATIONS } from '../../../shared/protocol/operations.ts';

/** What an agent of a test reports. */
export type ScriptedHost = Holdings & { system_identifier: string; free_bytes: number };

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

export const EMPTY_HOST: ScriptedHost = {
  system_identifier: '1',
  free_bytes: 0,
  branches: [],
  projects: [],
  snapshots: [],
};

/**
 * The agent's own answer to a call about its inventory; undefined for any other call.
 * @param pageEntries default: the agent's
 */
export async function inventoryAnswer(
  host: ScriptedHost,
  method: string,
  params: unknown,
  pageEntries?: number,
): Promise<object | undefined> {
  if (method === 'host.inventory') return host;
  if (method === 'inventory.list') return pageOf(host, OPERATIONS[method].params.parse(params), pageEntries);
  if (method !== 'inventory.digest') return undefined;
  const { system_identifier, free_bytes } = host;
  return {
    system_identifier,
    free_bytes,
    description: null,
    resets: [],
    groups: await digestGroups(host, sha256),
  };
}
