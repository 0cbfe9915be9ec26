import type { Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import type { Host } from '../host.ts';
import { prepareBranches } from './branch-prepare.ts';

/** Makes the logins, rules and pooler entries of all branches. It runs concurrently with their clones. */
export const prepareBatch = (
  host: Host,
  { access, ...batch }: Params<'batch.prepare'>,
): Promise<Record<string, never>> => prepareBranches(host, membersOf(batch), access);
