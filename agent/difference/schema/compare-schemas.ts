import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import type { Host } from '../../host.ts';
import { HostError } from '../../servers/host-error.ts';
import type { Sides } from '../sides.ts';

/**
 * The objects that differ, and the statements that bring `before` to the schema of `after`.
 * @param signal aborted when the comparison has taken too long
 */
export function compareSchemas(_host: Host, _sides: Sides, _signal: AbortSignal): Promise<SchemaDifference> {
  return Promise.reject(new HostError('INVALID_CALL', 'schemas are not compared yet'));
}
