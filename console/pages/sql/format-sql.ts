import { type SqlToken, sqlTokens } from '../../../shared/sql-tokens.ts';

const WIDTH = 80;
const INDENT = '  ';

/** A part of a statement that is no blank, and what separates it from the one before. */
interface Piece extends SqlToken {
  gap: '' | ' ' | '\n';
  /** Lower case. */
  word: string;
}

/** Statements whose clauses are known. All others stay as they are. */
const FORMATTED = new Set(['select', 'with', 'insert', 'update', 'delete', 'values', 'explain']);
const CLAUSES = new Set([
  ...['select', 'from', 'where', 'having', 'limit', 'offset', 'window', 'values', 'set', 'returning'],
  ...[
    'union',
    'intersect',
    'except',
    'group',
    'order',
    'on',
    'join',
    'left',
    'right',
    'full',
    'inner',
    'cross',
  ],
]);
/** Words that begin a clause only if this word follows. */
const FOLLOWED: Readonly<Record<string, string>> = { group: 'by', order: 'by', on: 'conflict' };
const JOINS = new Set(['left', 'right', 'full', 'inner', 'cross', 'outer', 'natural']);
/** Words that begin no clause after this one: `is distinct from`, `delete from`, `do update set`, `insert … default values`. */
const NOT_AFTER: Readonly<Record<string, readonly string[]>> = {
  from: ['distinct', 'delete'],
  values: ['default'],
};

/** Stands for a line end inside of a text or a comment, which must not be indented. No text of PostgreSQL has it. */
const LINE_END = '\0';

interface Statement {
  pieces: Piece[];
  /** Text of the piece, without the blanks around it. */
  raw: string;
}

/** The statements, each with the semicolon at its end. */
function statementsOf(text: string): Statement[] {
  const statements: Statement[] = [{ pieces: [], raw: '' }];
  let blank = '';
  for (const { kind, text: part } of sqlTokens(text)) {
    if (kind === 'blank') {
      blank = part;
      continue;
    }
    const statement = statements.at(-1) as Statement;
    const word = kind === 'word' ? part.toLowerCase() : part;
    const gap = blank.includes('\n') ? '\n' : blank && ' ';
    statement.raw += (statement.raw && blank) + part;
    statement.pieces.push({ kind, text: part.replaceAll('\n', LINE_END), gap, word });
    blank = '';
    if (part === ';') statements.push({ pieces: [], raw: '' });
  }
  return statements.filter(({ pieces }) => pieces.length > 0);
}

/** The gap before a piece. A text that continues in another line, and a piece after a comment, need their line. */
function gapOf({ gap, kind, text }: Piece, before: Piece | undefined): string {
  if (!before) return '';
  if (before.text.startsWith('--')) return '\n';
  if (
    gap === '\n' &&
    (kind === 'quoted' || kind === 'comment') &&
    (before.kind === 'quoted' || kind === 'comment')
  )
    return '\n';
  if (before.text === ',') return ' ';
  return text === ',' || text === ';' ? '' : gap && ' ';
}

const flat = (pieces: readonly Piece[]) =>
  pieces.map((piece, at) => gapOf(piece, pieces[at - 1]) + piece.text).join('');

/** The position of the parenthesis that ends the one at `from`. */
function closing(pieces: readonly Piece[], from: number): number {
  let depth = 0;
  for (let at = from; at < pieces.length; at += 1) {
    const { text } = pieces[at] as Piece;
    if (text === '(') depth += 1;
    if (text === ')') depth -= 1;
    if (depth === 0) return at;
  }
  return pieces.length - 1;
}

/** Splits at the pieces outside of parentheses for which `begins` holds. */
function splitAt(pieces: readonly Piece[], begins: (piece: Piece, at: number) => boolean): Piece[][] {
  const parts: Piece[][] = [[]];
  for (let at = 0; at < pieces.length; at += 1) {
    const piece = pieces[at] as Piece;
    if (at > 0 && begins(piece, at)) parts.push([]);
    if (piece.text !== '(') {
      parts.at(-1)?.push(piece);
      continue;
    }
    const end = closing(pieces, at);
    parts.at(-1)?.push(...pieces.slice(at, end + 1));
    at = end;
  }
  return parts.filter((part) => part.length > 0);
}

function beginsClause(pieces: readonly Piece[]) {
  return ({ word, gap, kind }: Piece, at: number): boolean => {
    const before = pieces[at - 1];
    const next = pieces[at + 1];
    // Without a gap it can be a part of what is before it; before a parenthesis it can be a function.
    if (kind !== 'word' || !CLAUSES.has(word) || (gap === '' && before?.text !== ')')) return false;
    if (JOINS.has(word))
      return !JOINS.has(before?.word ?? '') && (next?.word === 'join' || next?.word === 'outer');
    if (word === 'join') return !JOINS.has(before?.word ?? '');
    if (word in FOLLOWED && next?.word !== FOLLOWED[word]) return false;
    return !NOT_AFTER[word]?.includes(before?.word ?? '') && !(word === 'set' && before?.word === 'update');
  };
}

/** The words at the beginning of a clause, before the first of its parts. */
const headOf = ([first, second]: readonly Piece[]): number =>
  first && (first.word in FOLLOWED || (first.word === 'select' && second?.word === 'distinct')) ? 2 : 1;

function clauseLines(clause: readonly Piece[]): string[] {
  const whole = flat(clause);
  const hasBlock = clause.some(({ text }, at) => text === '(' && isBlock(clause, at));
  if (!hasBlock && whole.length <= WIDTH && !whole.includes('\n')) return [whole];
  const head = headOf(clause);
  const rest = clause.slice(head);
  // The comma stays at the end of its line.
  const items = splitAt(rest, (_, at) => rest[at - 1]?.text === ',');
  if (items.length > 1)
    return [flat(clause.slice(0, head)), ...items.flatMap((item) => indented(blockLines(item)))];
  let isRange = false;
  const conditions = splitAt(clause, ({ word, gap }) => {
    if (word === 'between') isRange = true;
    else if ((word === 'and' || word === 'or') && isRange) isRange = false;
    else return gap !== '' && (word === 'and' || word === 'or');
    return false;
  });
  return conditions.flatMap((condition, at) => {
    const lines = blockLines(condition);
    return at === 0 ? lines : indented(lines);
  });
}

const indented = (lines: readonly string[]) => lines.map((line) => INDENT + line);

const isBlock = (pieces: readonly Piece[], at: number) =>
  ['select', 'with', 'values', 'insert', 'update', 'delete'].includes(pieces[at + 1]?.word ?? '');

/** The lines of a part whose parentheses can have statements. */
function blockLines(pieces: readonly Piece[]): string[] {
  const lines: string[] = [''];
  let before: Piece | undefined;
  for (let at = 0; at < pieces.length; at += 1) {
    const piece = pieces[at] as Piece;
    const [first = '', ...more] = (gapOf(piece, before) + piece.text).split('\n');
    lines.push((lines.pop() ?? '') + first, ...more);
    before = piece;
    if (piece.text !== '(' || !isBlock(pieces, at)) continue;
    const end = closing(pieces, at);
    const inner = pieces.slice(at + 1, end);
    lines.push(...indented(splitAt(inner, beginsClause(inner)).flatMap(clauseLines)), '');
    before = undefined;
    at = end - 1;
  }
  return lines;
}

/**
 * Puts the clauses of statements on lines of their own. Only blanks change, and never those that have a meaning: the text has
 * the same parts before and after. Statements of other kinds, such as a function's, stay as they are.
 */
export function formatSql(text: string): string {
  if (text.includes(LINE_END)) return text;
  return statementsOf(text)
    .map(({ pieces, raw }) => {
      const first = pieces.find(({ kind }) => kind !== 'comment');
      if (!FORMATTED.has(first?.word ?? '')) return raw;
      return splitAt(pieces, beginsClause(pieces)).flatMap(clauseLines).join('\n').replaceAll(LINE_END, '\n');
    })
    .join('\n\n');
}
