const PIECE = /.{20}/g;

/** Whose secret the text has in it, whole or cut off. @param secrets by what they are, each of 20 characters or more */
export const secretsIn = (text: string, secrets: ReadonlyMap<string, string>): string[] =>
  [...secrets].flatMap(([what, secret]) =>
    secret.match(PIECE)?.some((piece) => text.includes(piece)) ? [what] : [],
  );

/** Which codes the text has in it, as a word of their own: of a longer number any six digits are a part. */
export const codesIn = (text: string, codes: readonly string[]): string[] =>
  codes.filter((code) => new RegExp(`(?<![\\w.])${code}(?![\\w.])`).test(text));
