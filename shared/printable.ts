/**
 * Text of others, such as names of a database, for a terminal or the log of a build. Its control characters could move the
 * cursor, change colours or the title, or hide what was written before.
 */

/** Controls (C0, DEL, C1), separators of lines that are no line feed, and marks that reorder a line. */
const UNSAFE = /[\p{Cc}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

const escaped = (character: string) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** A message, which can have several lines. */
export const printable = (text: string): string =>
  text.replaceAll(UNSAFE, (found) => (found === '\n' || found === '\t' ? found : escaped(found)));

/** What stays in its line and its column. */
export const printableLine = (text: string): string =>
  text.replaceAll(/[\t\n\v\f\r]/g, ' ').replaceAll(UNSAFE, escaped);

/** The same document: within a string JSON leaves some of these characters as they are. */
export const printableJson = (value: unknown, indent = 0): string =>
  JSON.stringify(value, null, indent).replaceAll(UNSAFE, (found) =>
    found === '\n' ? found : escaped(found),
  );
