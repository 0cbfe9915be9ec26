import { z } from 'zod';

/** A time in UTC with microseconds, as PostgreSQL has them: texts of this form have the order of their times. */
export const Moment = z.string().regex(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/);
export type Moment = z.output<typeof Moment>;

const MICROSECONDS = 6;

/** Since 1970. */
export const microsecondsOf = (moment: Moment): bigint =>
  BigInt(Date.parse(moment)) * 1000n + BigInt(moment.slice(-4, -1));

/** @param microseconds since 1970 */
export const momentAt = (microseconds: bigint): Moment =>
  new Date(Number(microseconds / 1000n))
    .toISOString()
    .replace('Z', `${String(microseconds % 1000n).padStart(3, '0')}Z`);

/**
 * @param text ISO 8601 with an offset and any number of digits after the second; further digits than six are left out
 * @returns null if it is no time
 */
export function momentOf(text: string): Moment | null {
  const milliseconds = Date.parse(text);
  if (Number.isNaN(milliseconds)) return null;
  const [, digits = ''] = /T\d\d:\d\d:\d\d\.(\d+)/.exec(text) ?? [];
  const seconds = new Date(milliseconds).toISOString().slice(0, -'.000Z'.length);
  return `${seconds}.${digits.slice(0, MICROSECONDS).padEnd(MICROSECONDS, '0')}Z`;
}
