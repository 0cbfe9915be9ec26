import { setTimeout as sleep } from 'node:timers/promises';
import type { Api, ApiResponse } from '../support/api.ts';
import { ContractError } from '../support/contract.ts';
import { RETRYABLE_CODES } from '../support/retryable-codes.ts';

/** Classes of SQLSTATE caused by the server and not by the statement: connection, resources, operator. */
const TRANSIENT_SQLSTATE = /^(08|53|57|58|XX)/;
const RETRY_EVERY_MS = 50;
const LOST_AFTER_MS = 20_000;

export interface Outcome<B> {
  /** The definite response; null if there is none. */
  response: ApiResponse<B> | null;
  /** An earlier attempt may have been executed, or may still be. */
  doubtful: boolean;
  tries: number;
}

interface RetryOptions {
  persists: boolean;
  /** Ends the retries even of a persistent client. */
  signal: AbortSignal;
}

/**
 * Sends a request once, or until there is a definite response.
 * @throws ContractError when a response differs from the API description
 */
export async function send<B>(
  request: () => Promise<ApiResponse<B>>,
  { persists, signal }: RetryOptions,
): Promise<Outcome<B>> {
  for (let tries = 1; ; tries++) {
    const response = await Promise.race([attempt(request), sleep(LOST_AFTER_MS, null, { ref: false })]);
    if (response && !isUndecided(response)) return { response, doubtful: tries > 1, tries };
    if (!persists || signal.aborted) return { response: null, doubtful: true, tries };
    await sleep(RETRY_EVERY_MS);
  }
}

const attempt = <B>(request: () => Promise<ApiResponse<B>>) =>
  request().catch((error: Error) => {
    if (error instanceof ContractError) throw error;
    return null;
  });

export const codeOf = ({ body }: ApiResponse<unknown>): string =>
  (body as { error?: string } | null)?.error ?? 'none';

/** After a fault the gateway may refuse a moment longer than it lasted, as while it waits for the keys of the issuer. */
const READ_WITHIN_MS = 30_000;

/** Reads as a client does, which repeats what it may. @throws Error which names the refusal */
export async function read<B>(api: Api, path: string): Promise<B> {
  const signal = AbortSignal.timeout(READ_WITHIN_MS);
  const { response } = await send(() => api.get<B>(path), { persists: true, signal });
  if (response?.status === 200) return response.body;
  throw new Error(`GET ${path}: ${response ? `${response.status} ${codeOf(response)}` : 'no response'}`);
}

function isUndecided(response: ApiResponse<unknown>): boolean {
  const code = codeOf(response);
  if (
    response.status === 202 &&
    /\.(?:create(?:_batch)?|reset|restore)$/.test((response.body as { kind?: string } | null)?.kind ?? '')
  )
    return true;
  if (code === 'STATEMENT_REFUSED')
    return TRANSIENT_SQLSTATE.test((response.body as { sqlstate?: string }).sqlstate ?? '');
  return RETRYABLE_CODES.includes(code);
}
