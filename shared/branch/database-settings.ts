import { z } from 'zod';

/** Longest time-out: more would let a forgotten session hold its locks for ever. */
const TIMEOUT_MAX_HOURS = 24;
/** Shortest one, in milliseconds: with less, not even a login is proved. */
const TIMEOUT_MIN_MS = 100;
const UNIT_MS: Readonly<Record<string, number>> = { ms: 1, s: 1000, min: 60_000, h: 3_600_000 };

/** 0 is no time-out, as PostgreSQL has it. */
const Timeout = z
  .string()
  .regex(
    /^(?:0|[1-9]\d{0,8}(?:ms|s|min|h))$/,
    'Must be 0, or a number with ms, s, min or h, for instance 30s.',
  )
  .refine((text) => {
    const [, digits = '0', unit = 'ms'] = /^(\d+)([a-z]*)$/.exec(text) ?? [];
    const ms = Number(digits) * (UNIT_MS[unit] ?? 1);
    return ms === 0 || (ms >= TIMEOUT_MIN_MS && ms <= TIMEOUT_MAX_HOURS * 3_600_000);
  }, `Must be 0, or between ${TIMEOUT_MIN_MS} ms and ${TIMEOUT_MAX_HOURS} hours.`)
  .meta({ example: '30s' });

const NAME = `(?:[a-z_][a-z0-9_]{0,62}|"[A-Za-z0-9_$ -]{1,63}")`;
const SearchPath = z
  .string()
  .max(1000)
  .regex(
    new RegExp(`^${NAME}(?:, ?${NAME})*$`),
    'Must be names of schemas, separated by commas, in double quotes if they have capitals or signs.',
  )
  .meta({ example: 'app, public' });

const text = (form: RegExp, example: string) =>
  z.string().regex(form, `Must be a value such as ${example}.`).meta({ example });

function isTimeZone(timeZone: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone });
    return true;
  } catch {
    return false;
  }
}

/** PostgreSQL reads an offset without a name the other way round than everybody else. */
const TimeZone = z
  .string()
  .max(64)
  .regex(/^[A-Za-z][A-Za-z0-9_+\-/]*$/, 'Must be the name of a time zone, such as Europe/Berlin.')
  .refine(isTimeZone, 'Must be the name of a time zone, such as Europe/Berlin.')
  .meta({ example: 'Europe/Berlin' });

const EVERY = z.strictObject({
  search_path: SearchPath,
  TimeZone,
  DateStyle: text(/^(?:ISO|SQL|Postgres|German)(?:, ?(?:DMY|MDY|YMD))?$/, 'ISO, DMY'),
  IntervalStyle: z.enum(['postgres', 'postgres_verbose', 'sql_standard', 'iso_8601']),
  lock_timeout: Timeout,
  statement_timeout: Timeout,
  idle_in_transaction_session_timeout: Timeout,
  default_transaction_isolation: z.enum(['read committed', 'repeatable read', 'serializable']),
  client_min_messages: z.enum(['debug1', 'log', 'notice', 'warning', 'error']),
});
type Shape = typeof EVERY.shape;

/**
 * Settings of PostgreSQL that the database of a branch may have: none that reads a file, runs code, or takes what all
 * branches of a host share.
 */
export const DatabaseSettings = EVERY.partial();
export type DatabaseSettings = z.output<typeof DatabaseSettings>;

export const DATABASE_SETTINGS = Object.keys(EVERY.shape) as (keyof DatabaseSettings)[];

/** A change: null ends a setting, and what is left out stays. */
export const DatabaseSettingsChange = z
  .strictObject(
    Object.fromEntries(
      Object.entries(EVERY.shape).map(([name, schema]) => [name, schema.nullable()]),
    ) as unknown as {
      [Name in keyof Shape]: z.ZodNullable<Shape[Name]>;
    },
  )
  .partial();
export type DatabaseSettingsChange = z.output<typeof DatabaseSettingsChange>;
