import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** A row of a table of the specification. */
export interface SpecifiedRow {
  /** Number of the section, such as `2.2`. */
  section: string;
  /** The section and the first cell, without marks; of two equal ones also the second. */
  key: string;
  /** The text of each cell by the head of its column. */
  cells: Readonly<Record<string, string>>;
}

const HEADING = /^#{2,3} (\d+(?:\.\d+)?)/;
const SEPARATOR = /^\|[-| ]+\|$/;
const PARTS = ['2', '3', '4', '5', '6', '7', '8'];

const cellsOf = (line: string) =>
  line
    .slice(1, -1)
    .split('|')
    .map((cell) => cell.trim());
const plain = (text: string) => text.replaceAll('`', '');

/** The rows of the tables in sections 2 to 8 of the copy of the specification in this folder, in their order. */
export function specifiedRows(): SpecifiedRow[] {
  const lines = readFileSync(join(import.meta.dirname, 'service-spec.md'), 'utf8').split('\n');
  const rows: (Omit<SpecifiedRow, 'key'> & { texts: string[] })[] = [];
  let section = '';
  let head: string[] | null = null;
  for (const line of lines) {
    section = HEADING.exec(line)?.[1] ?? section;
    if (!line.startsWith('|')) head = null;
    else if (head === null) head = cellsOf(line);
    else if (!SEPARATOR.test(line)) {
      const texts = cellsOf(line);
      rows.push({
        section,
        texts,
        cells: Object.fromEntries(head.map((name, n) => [name, texts[n] ?? ''])),
      });
    }
  }
  const inParts = rows.filter((row) => PARTS.includes(row.section.split('.')[0] ?? ''));
  const first = ({ section: where, texts: [text = ''] }: (typeof rows)[number]) => `${where} ${plain(text)}`;
  const seen = Map.groupBy(inParts, first);
  return inParts.map(({ texts, ...row }) => {
    const key = first({ ...row, texts });
    const isAlone = seen.get(key)?.length === 1;
    return { ...row, key: isAlone ? key : `${key}: ${plain(texts[1] ?? '')}` };
  });
}
