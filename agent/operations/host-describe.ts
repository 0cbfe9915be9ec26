import manifest from '../../package.json' with { type: 'json' };
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { examine } from '../maintenance/examine.ts';

/** Versions of the agent and both servers, and a sentence for each fault of their set-up. */
export async function describeHost(host: Host): Promise<MethodResult<'host.describe'>> {
  const { findings, postgresVersion, poolerVersion } = await examine(host);
  return {
    agent_version: manifest.version,
    postgres_version: postgresVersion,
    pooler_version: poolerVersion,
    clone_method: host.cloneMethod,
    warnings: findings.map(({ sentence }) => sentence),
  };
}
