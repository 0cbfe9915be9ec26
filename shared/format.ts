import type { ReplayProgress } from './project/job.ts';

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

export function bytes(value: number): string {
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  const scaled = value / 1024 ** power;
  const digits = power === 0 || scaled >= 100 ? 0 : 1;
  return `${scaled.toFixed(digits)} ${UNITS[power]}`;
}

export const gib = (value: number): string => bytes(value * 2 ** 30);

const COMPACT = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
export const compact = (value: number): string => COMPACT.format(value);

const SPANS = [
  ['y', 365 * 86_400],
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
] as const;

/** The two largest units of a duration, for instance `6 d 4 h`. */
export function duration(seconds: number): string {
  let left = Math.max(0, Math.floor(seconds));
  const parts: string[] = [];
  for (const [unit, length] of SPANS) {
    const whole = Math.floor(left / length);
    if (whole === 0 && parts.length === 0) continue;
    left -= whole * length;
    if (whole > 0) parts.push(`${whole} ${unit}`);
    if (parts.length === 2 || (parts.length === 1 && whole >= 10)) break;
  }
  return parts.slice(0, 2).join(' ') || '0 s';
}

/** How far a replay is, for instance `128 MiB of 1.5 GiB of log, about 40 s left`. */
export function replayed({ bytes: all, replayed_bytes, seconds_left }: ReplayProgress): string {
  const left = seconds_left === null ? '' : `, about ${duration(seconds_left)} left`;
  return `${bytes(replayed_bytes)} of ${bytes(all)} of log${left}`;
}

/** A timestamp as people say it, for instance `in 6 d 4 h` or `3 min ago`. @param now Unix milliseconds */
export function relative(timestamp: string, now: number): string {
  const seconds = secondsUntil(timestamp, now);
  if (Math.abs(seconds) < 1) return 'now';
  return seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

export const secondsUntil = (timestamp: string, now: number): number => (Date.parse(timestamp) - now) / 1000;
export const secondsSince = (timestamp: string, now: number): number => (now - Date.parse(timestamp)) / 1000;

export const milliseconds = (value: number): string =>
  value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;

const DATE_TIME = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'short' });
export const dateTime = (timestamp: string): string => DATE_TIME.format(new Date(timestamp));

export const percent = (ratio: number): string =>
  `${(ratio * 100).toFixed(ratio !== 0 && ratio < 0.001 ? 3 : ratio < 0.01 ? 2 : 1)} %`;

/** The pairs in `pr=42 owner=ada`. A word without `=` is a label without a value. */
export const labelsOf = (text: string): Record<string, string> =>
  Object.fromEntries(
    text
      .split(/\s+/)
      .filter(Boolean)
      .map((word) => {
        const [name = '', ...value] = word.split('=');
        return [name, value.join('=')];
      }),
  );

export const plural = (count: number, one: string, many = `${one}s`) =>
  `${count} ${count === 1 ? one : many}`;
