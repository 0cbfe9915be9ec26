import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { HostError } from '../servers/host-error.ts';

export function diffRows(_host: Host, _params: Params<'row.diff'>): Promise<MethodResult<'row.diff'>> {
  return Promise.reject(new HostError('INVALID_CALL', 'rows are not compared yet'));
}
