import { printableLine } from '../shared/printable.ts';

const LINES_MAX = 60;
const LINE_MAX = 200;

interface Limits {
  lines?: number;
  characters?: number;
}

/**
 * A block of code, which no content can leave (CommonMark 4.5): the author of a migration chooses the names
 * of tables. It is indented, so that no line of the content can be read as a line of the comment.
 */
export function codeBlock(
  lines: readonly string[],
  language = '',
  { lines: linesMax = LINES_MAX, characters = LINE_MAX }: Limits = {},
): string {
  const shown = lines.slice(0, linesMax).map((line) => printableLine(line).slice(0, characters));
  const ticks = shown.flatMap((line) => line.match(/`+/g) ?? []).map(({ length }) => length);
  const fence = '`'.repeat(Math.max(2, ...ticks) + 1);
  const block = [`${fence}${language}`, ...shown, fence].map((line) => ` ${line}`).join('\n');
  return lines.length > linesMax ? `${block}\n\n… and ${lines.length - linesMax} more.` : block;
}

/** Text that is hidden until somebody opens it. */
export const folded = (title: string, content: string): string =>
  `<details><summary>${title}</summary>\n\n${content}\n\n</details>`;
