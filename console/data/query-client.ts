import { MutationCache, QueryClient } from '@tanstack/react-query';
import { ResponseError } from '../../client/response-error.ts';

/** The gateway did not respond at all. */
export const isUnreachable = (error: unknown): boolean => error instanceof TypeError;

/** The gateway has no link with the host of the project. */
export const isHostAway = (error: unknown): boolean =>
  error instanceof ResponseError && error.code === 'HOST_UNAVAILABLE';

const PASSING_CODES = new Set<string | null>(['RATE_LIMITED', 'PROJECT_BUSY']);

/** A failure that passes by itself. */
const isPassing = (error: unknown): boolean =>
  isUnreachable(error) ||
  (error instanceof ResponseError &&
    (PASSING_CODES.has(error.code) || error.status === 503 || error.status === 504));

const RETRIES = 3;
const RETRY_MAX_SECONDS = 15;

/** Seconds that the gateway asks to wait. */
export function waitOf(error: unknown): number | null {
  if (!(error instanceof ResponseError)) return null;
  const { retry_after } = error.fields;
  return typeof retry_after === 'number' ? retry_after : null;
}

export const queryClient = new QueryClient({
  mutationCache: new MutationCache(),
  defaultOptions: {
    queries: {
      // A page decides by itself how often it reads again.
      refetchOnWindowFocus: true,
      staleTime: 2_000,
      networkMode: 'always',
      retry: (failures, error) => isUnreachable(error) || (isPassing(error) && failures < RETRIES),
      retryDelay: (failures, error) =>
        Math.min(waitOf(error) ?? 2 ** Math.min(failures, 3), RETRY_MAX_SECONDS) * 1000,
    },
    mutations: { networkMode: 'always', retry: false },
  },
});

/** Reads again what these queries, and all whose keys begin like theirs, have shown. */
export function refresh(...queries: readonly { queryKey: readonly unknown[] }[]): void {
  for (const { queryKey } of queries) queryClient.invalidateQueries({ queryKey });
}
