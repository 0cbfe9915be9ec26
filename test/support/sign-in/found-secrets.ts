const PIECE = /.{20}/g;

/**
 * The names of the secrets that a text contains in whole or in part.
 * @param secrets by name, of at least 20 characters
 */
export const secretsIn = (text: string, secrets: ReadonlyMap<string, string>): string[] =>
  [...secrets].flatMap(([name, secret]) =>
    secret.match(PIECE)?.some((piece) => text.includes(piece)) ? [name] : [],
  );

/** The codes that a text contains as separate words; a longer number could contain any six digits. */
export const codesIn = (text: string, codes: readonly string[]): string[] =>
  codes.filter((code) => new RegExp(`(?<![\\w.])${code}(?![\\w.])`).test(text));
