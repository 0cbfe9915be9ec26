const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, y: 31_536_000 };

/** Seconds of `90s`, `10m`, `2h`, `7d` or a number of seconds; null for anything else. */
export function secondsOf(text: string): number | null {
  const [, digits, unit = 's'] = /^(\d{1,9})([smhdy])?$/.exec(text) ?? [];
  return digits === undefined ? null : Number(digits) * (SECONDS[unit] ?? 1);
}
