/** A part of a text of SQL. All parts together are the text. */
export interface SqlToken {
  kind: 'blank' | 'comment' | 'quoted' | 'word' | 'other';
  text: string;
}

/**
 * Lexical structure of PostgreSQL (its documentation, section 4.1), with `standard_conforming_strings`. What is
 * not closed extends to the end, and PostgreSQL reports it.
 */
const TOKEN = new RegExp(
  [
    /(?<blank>\s+)/,
    /(?<line>--[^\n\r]*)/,
    /(?<comment>\/\*)/,
    /(?<quoted>[eE]'(?:[^'\\]|\\.|'')*(?:'|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$))/,
    /(?<dollar>\$(?:[A-Za-z_\x80-\uffff][\w\x80-\uffff]*)?\$)/,
    /(?<word>[A-Za-z_\x80-\uffff][\w$\x80-\uffff]*)/,
    /(?<other>\$?\d[\w.]*|.)/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'suy',
);

/** The position after a comment, which can contain comments. @param from the position after its `/*` */
function endOfComment(text: string, from: number): number {
  const sign = /\/\*|\*\//g;
  sign.lastIndex = from;
  for (let depth = 1; depth > 0; ) {
    const [found] = sign.exec(text) ?? [];
    if (found === undefined) return text.length;
    depth += found === '/*' ? 1 : -1;
  }
  return sign.lastIndex;
}

function endOfDollarQuote(text: string, from: number, quote: string): number {
  const end = text.indexOf(quote, from);
  return end === -1 ? text.length : end + quote.length;
}

/** Splits a text of SQL into its parts. */
export function* sqlTokens(text: string): Generator<SqlToken> {
  for (let at = 0; at < text.length; ) {
    const from = at;
    TOKEN.lastIndex = at;
    const { groups = {}, 0: token = '' } = TOKEN.exec(text) ?? {};
    at += Math.max(1, token.length);
    if (groups.comment !== undefined) at = endOfComment(text, at);
    if (groups.dollar !== undefined) at = endOfDollarQuote(text, at, token);
    yield { kind: kindOf(groups), text: text.slice(from, at) };
  }
}

function kindOf({
  blank,
  line,
  comment,
  quoted,
  dollar,
  word,
}: Record<string, string | undefined>): SqlToken['kind'] {
  if (blank !== undefined) return 'blank';
  if ((line ?? comment) !== undefined) return 'comment';
  if ((quoted ?? dollar) !== undefined) return 'quoted';
  return word === undefined ? 'other' : 'word';
}
