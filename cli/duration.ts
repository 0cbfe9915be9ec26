import { InvalidArgumentError } from 'commander';

const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, y: 31_536_000 };

/** Parses `90s`, `10m`, `2h`, `7d` or a number of seconds. */
export function readDuration(text: string): number {
  const [, digits, unit = 's'] = /^(\d{1,9})([smhdy])?$/.exec(text) ?? [];
  if (digits === undefined)
    throw new InvalidArgumentError('Give a number and a unit, for instance 10m or 2h.');
  return Number(digits) * (SECONDS[unit] ?? 1);
}

/** Parses an option that is a whole number. */
export function readCount(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Give a whole number.');
  return Number(text);
}

/** Collects an option that can be repeated. */
export const collect = (value: string, previous: string[] | undefined): string[] => [
  ...(previous ?? []),
  value,
];
