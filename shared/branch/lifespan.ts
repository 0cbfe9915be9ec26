import { z } from 'zod';

const DAY_SECONDS = 86_400;

/** Seconds from creation to expiry, by lifespan (specification 2.3); `null`: never. */
export const LIFESPAN_SECONDS = {
  '7d': 7 * DAY_SECONDS,
  '1m': 30 * DAY_SECONDS,
  '6m': 183 * DAY_SECONDS,
  '1y': 365 * DAY_SECONDS,
  forever: null,
} as const satisfies Record<string, number | null>;

export type Lifespan = keyof typeof LIFESPAN_SECONDS;

export const LIFESPANS = Object.keys(LIFESPAN_SECONDS) as [Lifespan, ...Lifespan[]];

export const DEFAULT_LIFESPAN: Lifespan = '7d';

/** Every spelling in specification 2.3, aliases included. */
const SPELLINGS: Record<string, Lifespan> = {
  '7d': '7d',
  '7days': '7d',
  '7 days': '7d',
  '1m': '1m',
  '1month': '1m',
  '1 month': '1m',
  '6m': '6m',
  '6months': '6m',
  '6 months': '6m',
  '1y': '1y',
  '1year': '1y',
  '1 year': '1y',
  forever: 'forever',
  permanent: 'forever',
};

const ONE_OF_SPELLINGS = `one of ${Object.keys(SPELLINGS).join(', ')}, in any case`;

/** A lifespan in a request, in any spelling and case; parses to its canonical value. */
export const LifespanSpelling = z
  .string()
  .transform((text, context): Lifespan => {
    const lifespan = Object.hasOwn(SPELLINGS, text.toLowerCase()) ? SPELLINGS[text.toLowerCase()] : undefined;
    if (lifespan) return lifespan;
    context.addIssue({ code: 'custom', message: `must be ${ONE_OF_SPELLINGS}` });
    return z.NEVER;
  })
  .meta({ description: `Time until the branch expires: ${ONE_OF_SPELLINGS}.`, example: '7d' });

/** When a branch of this lifespan expires, counted from `from`; `null` for `forever`. */
export function expiryOf(lifespan: Lifespan, from: Date): Date | null {
  const seconds = LIFESPAN_SECONDS[lifespan];
  return seconds === null ? null : new Date(from.getTime() + seconds * 1000);
}
