import { expireRules, nextRuleEnd } from '../access/change-rules.ts';
import { nextEnd } from '../branches/branch-ends.ts';
import { retireBranches } from '../branches/delete-branch.ts';
import { nextExpiry, retireSnapshots } from '../branches/drop-snapshots.ts';
import { expireBranches } from '../branches/expiry.ts';
import { nextScheduled, takeScheduledSnapshot } from '../branches/take-snapshot.ts';
import { applyDueChanges, nextDueChange } from '../changes/due.ts';
import { isProjectMoving } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import type { Settings } from '../settings.ts';

/**
 * Ends the lifespans, leases and retentions of the project's branches, snapshots and network rules that are
 * over, and begins the snapshot and the changes of `main` that are due.
 * @param beforeWriting called before work is written that outlives this call
 * @returns when the next one ends, in Unix milliseconds; infinite if none will
 */
export async function endLives(
  db: Database,
  settings: Settings,
  projectId: string,
  beforeWriting: () => void,
): Promise<number> {
  const now = new Date();
  const isMoving = await isProjectMoving(db, projectId);
  if (!isMoving) await retireBranches(db, projectId, now, beforeWriting);
  await expireBranches(db, settings, projectId, now);
  await expireRules(db, projectId, now);
  if (!isMoving) {
    await retireSnapshots(db, settings, projectId, now, beforeWriting);
    await takeScheduledSnapshot(db, settings, projectId, now, beforeWriting);
    await applyDueChanges(db, projectId, now, beforeWriting);
  }
  const [end, expiry, scheduled, ruleEnd, change] = await Promise.all([
    nextEnd(db, projectId),
    nextExpiry(db, projectId),
    nextScheduled(db, projectId),
    nextRuleEnd(db, projectId),
    nextDueChange(db, projectId, now),
  ]);
  const next = Math.min(end?.getTime() ?? Number.POSITIVE_INFINITY, expiry, scheduled, ruleEnd, change);
  return isMoving ? Math.max(next, now.getTime() + MOVING_MS) : next;
}

/** What adds or drops databases waits for the end of a move, and looks again after this time. */
const MOVING_MS = 5_000;
