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

/** What a record says if the client chose a number of seconds instead. */
const CUSTOM = 'custom';

export const RECORDED_LIFESPANS = [...LIFESPANS, CUSTOM] as const;

export const TtlSeconds = z.int().min(60).max(31_536_000).meta({
  description: 'Seconds until the branch expires, instead of a `lifespan`. Its record then says `custom`.',
  example: 7200,
});

/** How long a branch lives; `ttlSeconds` null: without end. */
export interface Life {
  lifespan: (typeof RECORDED_LIFESPANS)[number];
  ttlSeconds: number | null;
}

/** @param request names at most one of the two; by default the life is a week */
export const lifeOf = ({
  lifespan = DEFAULT_LIFESPAN,
  ttl_seconds: ttlSeconds,
}: {
  lifespan?: Lifespan | undefined;
  ttl_seconds?: number | undefined;
}): Life =>
  ttlSeconds === undefined
    ? { lifespan, ttlSeconds: LIFESPAN_SECONDS[lifespan] }
    : { lifespan: CUSTOM, ttlSeconds };

/** When a branch with this life expires, counted from `from`; `null`: never. */
export const expiryOf = ({ ttlSeconds }: Life, from: Date): Date | null =>
  ttlSeconds === null ? null : new Date(from.getTime() + ttlSeconds * 1000);
