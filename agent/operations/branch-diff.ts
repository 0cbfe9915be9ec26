import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { HostError } from '../servers/host-error.ts';

export function diffBranch(
  _host: Host,
  _params: Params<'branch.diff'>,
): Promise<MethodResult<'branch.diff'>> {
  return Promise.reject(new HostError('INVALID_CALL', 'branches are not compared yet'));
}
