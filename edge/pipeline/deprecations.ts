import type { MiddlewareHandler } from 'hono';

/** Something that a later release takes away. */
export interface Deprecation {
  /** A field of the request or the response, as `object.field`; null: the whole operation. */
  field: string | null;
  /** The day of the release that deprecated it, as `2026-11-25`. */
  since: string;
  /** The day from which on a release may lack it: the minor version after the next one at the earliest. */
  sunset: string;
  /** What to use instead, for the description and the changelog. */
  instead: string;
}

/**
 * Everything that is deprecated, by the ID of its operation. `operation()` announces it on each response. A
 * field is marked in its schema too (`.meta({ deprecated: true })`); a test compares both
 * (docs/releasing.md).
 */
export const DEPRECATIONS: Readonly<Partial<Record<string, readonly Deprecation[]>>> = {};

const timeOf = (day: string) => new Date(`${day}T00:00:00Z`);

/** The headers `Deprecation` (RFC 9745) and `Sunset` (RFC 8594), of what goes first. */
function deprecationHeaders(deprecations: readonly Deprecation[]): Record<string, string> {
  const first = (days: string[]) => timeOf(days.toSorted()[0] ?? '');
  return {
    Deprecation: `@${first(deprecations.map(({ since }) => since)).getTime() / 1000}`,
    Sunset: first(deprecations.map(({ sunset }) => sunset)).toUTCString(),
  };
}

/** Adds the headers to each response, failures included. */
export const announce =
  (deprecations: readonly Deprecation[]): MiddlewareHandler =>
  async (c, next) => {
    await next();
    for (const [name, value] of Object.entries(deprecationHeaders(deprecations)))
      c.res.headers.set(name, value);
  };
