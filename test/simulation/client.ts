import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiResponse } from '../support/api.ts';
import { ContractError } from '../support/contract.ts';
import { RETRYABLE_CODES } from '../support/retryable-codes.ts';

/** Classes of SQLSTATE that are the server's trouble and not the statement's: connection, resources, operator. */
const PASSING_SQLSTATE = /^(08|53|57|58|XX)/;
const ASK_AGAIN_EVERY_MS = 50;
const LOST_AFTER_MS = 20_000;

export interface Outcome<B> {
  /** The answer that decides; null: there is none. */
  response: ApiResponse<B> | null;
  /** A try before it may have been carried out, or be carried out yet. */
  doubtful: boolean;
  tries: number;
}

interface Patience {
  persists: boolean;
  /** Ends even the patience of those that persist. */
  signal: AbortSignal;
}

/**
 * Sends a request until there is an answer that decides, or once.
 * @throws ContractError when an answer is not as the API describes it
 */
export async function send<B>(
  request: () => Promise<ApiResponse<B>>,
  { persists, signal }: Patience,
): Promise<Outcome<B>> {
  for (let tries = 1; ; tries++) {
    const answer = await Promise.race([attempt(request), sleep(LOST_AFTER_MS, null, { ref: false })]);
    if (answer && !isUndecided(answer)) return { response, doubtful: tries > 1, tries };
    if (!persists || signal.aborted) return { response: null, doubtful: true, tries };
    await sleep(ASK_AGAIN_EVERY_MS);
  }
}

const attempt = <B>(request: () => Promise<ApiResponse<B>>) =>
  request().catch((error: Error) => {
    if (error instanceof ContractError) throw error;
    return null;
  });

export const codeOf = ({ body }: ApiResponse<unknown>): string =>
  (body as { error?: string } | null)?.error ?? 'none';

function isUndecided(answer: ApiResponse<unknown>): boolean {
  const code = codeOf(answer);
  if (answer.status === 202 && (answer.body as { kind?: string } | null)?.kind?.endsWith('.create'))
    return true;
  if (code === 'STATEMENT_REFUSED')
    return PASSING_SQLSTATE.test((answer.body as { sqlstate?: string }).sqlstate ?? '');
  return RETRYABLE_CODES.includes(code);
}
