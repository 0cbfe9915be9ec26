import { InvalidArgumentError } from 'commander';
import { secondsOf } from '../shared/duration.ts';
import { momentOf } from '../shared/moment.ts';

/** Parses `90s`, `10m`, `2h`, `7d` or a number of seconds. */
export function readDuration(text: string): number {
  const seconds = secondsOf(text);
  if (seconds === null) throw new InvalidArgumentError('Give a number and a unit, for instance 10m or 2h.');
  return seconds;
}

const AGO = /^(\d{1,9}) ?(s|m|h|d|(?:second|minute|hour|day)s?) ago$/;

/** Parses a time of the past: `10 minutes ago`, `2h ago`, or ISO 8601 with an offset. */
export function readPastTime(text: string): string {
  const [, count = '', unit = ''] = AGO.exec(text) ?? [];
  const seconds = secondsOf(`${count}${unit.charAt(0)}`);
  if (seconds !== null) return new Date(Date.now() - 1000 * seconds).toISOString();
  const moment = /(?:Z|[+-]\d\d:\d\d)$/.test(text) ? momentOf(text) : null;
  if (moment === null)
    throw new InvalidArgumentError("Give '10 minutes ago', or a time such as 2026-11-23T10:15:00Z.");
  return moment;
}

/** Parses an option that is a whole number. */
export function readCount(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Give a whole number.');
  return Number(text);
}

/** Parses a limit of connection attempts: a number, or the highest that the operator allows. */
export const readAttempts = (text: string): number | 'max' => (text === 'max' ? text : readCount(text));

/** A number of spares, or `auto`. */
export const readSpares = (text: string): number | 'auto' =>
  text === 'auto' ? text : text === '0' ? 0 : readCount(text);

/** Collects an option that can be repeated. */
export const collect = (value: string, previous: string[] | undefined): string[] => [
  ...(previous ?? []),
  value,
];

/** As `collect`, for an option that takes one of these words. */
export const collectOneOf =
  (words: readonly string[]) =>
  (value: string, previous: string[] | undefined): string[] => {
    if (!words.includes(value)) throw new InvalidArgumentError(`Allowed choices are ${words.join(', ')}.`);
    return collect(value, previous);
  };
