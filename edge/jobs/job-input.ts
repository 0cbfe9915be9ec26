import type { Life } from '../../shared/branch/lifespan.ts';
import type { AuditActor } from '../audit/actor.ts';

/** What is compared with a branch: another one, or a snapshot. */
export interface Comparison {
  against: { branchId: string } | { snapshotId: string };
  rows: boolean;
  schema: boolean;
}

/** What a job is about beyond its branch. */
export interface JobSubject {
  /** The branches of a batch. */
  branchIds?: string[];
  /** The snapshot that the job makes, drops or leaves behind. */
  snapshotId?: string;
  /** Of a snapshot by schedule: the one before, which makes it unnecessary if nothing has changed. */
  unlessSameAs?: string;
  /** Of a reset: the database that is cloned, and the new life of the branch. */
  source?: string;
  life?: Life;
  /** The response of the reset has the form of a creation. */
  asCreation?: boolean;
  /** Of a comparison. */
  comparison?: Comparison;
}

export interface JobInput extends JobSubject {
  actor: AuditActor;
}
