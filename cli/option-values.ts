import { InvalidArgumentError } from 'commander';
import { secondsOf } from '../shared/duration.ts';

/** Parses `90s`, `10m`, `2h`, `7d` or a number of seconds. */
export function readDuration(text: string): number {
  const seconds = secondsOf(text);
  if (seconds === null) throw new InvalidArgumentError('Give a number and a unit, for instance 10m or 2h.');
  return seconds;
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
