import type { StoredResponse } from '../api/idempotency-key.ts';

/** State of a creation when its client stops waiting; `response` is null while the job is running. */
export type CreationProgress = { response: StoredResponse } | { response: null; jobId: string };
