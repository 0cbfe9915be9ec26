const BROWSERS = [
  ['Edge', /Edg\//],
  ['Opera', /OPR\//],
  ['Firefox', /Firefox\//],
  ['Chrome', /Chrome\//],
  ['Safari', /Safari\//],
] as const;

const SYSTEMS = [
  ['iPhone or iPad', /iPhone|iPad/],
  ['Android', /Android/],
  ['Windows', /Windows/],
  ['macOS', /Mac OS X/],
  ['Linux', /Linux/],
] as const;

const firstOf = (names: typeof BROWSERS | typeof SYSTEMS, userAgent: string) =>
  names.find(([, pattern]) => pattern.test(userAgent))?.[0];

/** What a person calls the program of a session, for instance `Firefox, Linux`. */
export function browserName(userAgent: string | null): string {
  if (userAgent === null) return '–';
  return [firstOf(BROWSERS, userAgent) ?? userAgent, firstOf(SYSTEMS, userAgent)].filter(Boolean).join(', ');
}
