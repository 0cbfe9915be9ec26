const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, y: 31_536_000 };

/** Seconds of `90s`, `10m`, `2h`, `7d` or a number of seconds; null for anything else. */
export function secondsOf(text: string): number | null {
  const [, digits, unit = 's'] = /^(\d{1,9})([smhdy])?$/.exec(text) ?? [];
  return digits === undefined ? null : Number(digits) * (SECONDS[unit] ?? 1);
}

const SPELLED = [
  [86_400, 'day'],
  [3600, 'hour'],
  [60, 'minute'],
] as const;

/** `3600` as `1 hour`; null for what is no multiple of a minute. */
export function spelledDuration(seconds: number): string | null {
  const [unit, name] = SPELLED.find(([each]) => seconds >= each && seconds % each === 0) ?? [];
  if (unit === undefined) return null;
  const count = seconds / unit;
  return `${count} ${name}${count === 1 ? '' : 's'}`;
}
