import { type SqlToken, sqlTokens } from '../../shared/sql-tokens.ts';

/** One statement of a text, without the semicolon after it. */
export interface Statement {
  text: string;
  /** Its first words and signs in lower case, separated by spaces; nothing of a quoted text. */
  start: string;
}

/** Words of `start`: enough for `create or replace function` and for whole statements such as `begin work`. */
const START_LENGTH = 4;

/** A routine with a body of SQL, whose statements end with semicolons. */
const ROUTINE = /^create (?:or replace )?(?:function|procedure)\b/;

interface Token extends SqlToken {
  /** Position in the text. */
  from: number;
}

/** The words, signs and quotes of a text, without blanks and comments. */
export function* tokensOf(text: string): Generator<Token> {
  let from = 0;
  for (const token of sqlTokens(text)) {
    if (token.kind !== 'blank' && token.kind !== 'comment') yield { ...token, from };
    from += token.text.length;
  }
}

/**
 * Splits a text at the semicolons at which psql does: not in quotes, comments, parentheses and the body of a
 * routine. A statement of comments alone is left out.
 *
 * Nothing depends on it for security: PostgreSQL refuses each part that is more than one statement.
 */
export function splitStatements(text: string): Statement[] {
  const statements: Statement[] = [];
  let begin = 0;
  let start: string[] = [];
  let parentheses = 0;
  /** Of `BEGIN … END` in the body of a routine. */
  let blocks = 0;
  const end = (at: number) => {
    if (start.length > 0) statements.push({ text: text.slice(begin, at).trim(), start: start.join(' ') });
    begin = at + 1;
    start = [];
    parentheses = 0;
    blocks = 0;
  };
  for (const { text: token, kind, from } of tokensOf(text)) {
    if (token === ';' && parentheses === 0 && blocks === 0) {
      end(from);
      continue;
    }
    const word = kind === 'word' ? token.toLowerCase() : undefined;
    if (start.length < START_LENGTH) start.push(word ?? (kind === 'other' ? token : ''));
    if (token === '(') parentheses += 1;
    else if (token === ')') parentheses = Math.max(0, parentheses - 1);
    else if (parentheses === 0 && word !== undefined) blocks += stepOf(word, blocks, start);
  }
  end(text.length);
  return statements;
}

/** How a word changes the depth of blocks. */
function stepOf(word: string, blocks: number, start: readonly string[]): number {
  if (!ROUTINE.test(start.join(' '))) return 0;
  if (word === 'begin' || (word === 'case' && blocks > 0)) return 1;
  return word === 'end' && blocks > 0 ? -1 : 0;
}
