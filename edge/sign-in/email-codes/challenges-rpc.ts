import type { ChallengeRequest, CodeSubmission, SubmissionResult } from './challenge.ts';

/** The Durable Object that holds the open challenges of one e-mail address. */
export interface ChallengesRpc extends Rpc.DurableObjectBranded {
  /** @returns when the code expires, in Unix milliseconds */
  start(request: ChallengeRequest): Promise<{ expiresAt: number }>;
  /** Refuses the code of a challenge from now on. */
  cancel(challengeId: string): Promise<void>;
  verify(submission: CodeSubmission): Promise<SubmissionResult>;
}
