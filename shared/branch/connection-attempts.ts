import { z } from 'zod';

/** Connection attempts a minute that a branch accepts (specification 8). */
export const DEFAULT_CONNECTION_ATTEMPTS = 50;
const LOWEST = 10;
/** No setting of an operator exceeds it. */
export const HIGHEST_CONNECTION_ATTEMPTS = 10_000;

/** A number in a request; `max`: the highest one that the operator allows. */
export const AttemptsPerMinute = z
  .union([z.int().min(LOWEST).max(HIGHEST_CONNECTION_ATTEMPTS), z.literal('max')])
  .meta({
    description:
      'Connection attempts a minute from all admitted networks together, successful ones included; above it, connections are refused until the minute ends. `max`: the highest number that the operator of the gateway allows.',
    example: 500,
  });
export type AttemptsPerMinute = z.output<typeof AttemptsPerMinute>;
