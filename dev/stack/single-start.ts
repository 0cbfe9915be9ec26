import { claimName } from '../../agent/upgrade/program-file.ts';
import { shortHash } from './host-folder.ts';
import { Refusal } from './refusal.ts';

/**
 * Locks DEV_DIR for this process.
 * @returns a function that releases the lock
 * @throws Refusal when another process holds the lock
 */
export async function lockDevFolder(devDir: string): Promise<() => Promise<void>> {
  const unlock = await claimName(`branchgate-dev-${shortHash(devDir)}`);
  if (!unlock)
    throw new Refusal(`a stack is already running in ${devDir}: stop it, or set DEV_DIR to another folder`);
  return unlock;
}
