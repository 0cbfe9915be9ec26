import { createHash } from 'node:crypto';
import { digestGroups } from '../../shared/protocol/inventory-digest.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { readResets } from '../postgres/read-resets.ts';
import { describeHost } from './host-describe.ts';
import { takeInventory } from './host-inventory.ts';

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

/** The inventory, short enough for a host with any number of databases. */
export async function digestInventory(host: Host): Promise<MethodResult<'inventory.digest'>> {
  const { system_identifier, free_bytes, ...holdings } = await takeInventory(host);
  return {
    system_identifier,
    free_bytes,
    // A pooler that is away must not prevent the reconciliation.
    description: await describeHost(host).catch(() => null),
    resets: await readResets(host.postgres),
    groups: await digestGroups(holdings, sha256),
  };
}
