import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOLDER, GOAL_HEAD, table } from './report.ts';

const HEAD = `# Benchmarks

The latest results of \`npm run bench\`. \`npm run bench -- <name>\` repeats one benchmark and updates this page. Both
sides of every ratio are measured interleaved in one run. Each page has its method, its samples and, where a goal is
missed, the reason and what was tried.`;

const cellsOf = (line: string): string[] =>
  line
    .split('|')
    .slice(1, -1)
    .map((cell) => cell.trim());

/** The rows of a page's goals, with the load at its start. A page without a table of goals has none. */
export function goalRows(page: string, text: string): string[][] {
  const lines = text.split('\n');
  const title = /^# (.+)$/m.exec(text)?.[1] ?? page;
  const load = lines.map(cellsOf).find(([name]) => name === 'load at start')?.[1] ?? '';
  const head = lines.findIndex((line) => cellsOf(line).join() === GOAL_HEAD.join());
  if (head < 0) return [];
  const rest = lines.slice(head + 2);
  const end = rest.findIndex((line) => !line.startsWith('|'));
  return rest
    .slice(0, end < 0 ? undefined : end)
    .map((line) => [`[${title}](${page})`, ...cellsOf(line), load]);
}

/** Updates the table of contents of docs/benchmarks from its pages. */
export function writeSummary(): void {
  const rows = readdirSync(FOLDER)
    .filter((file) => file.endsWith('.md') && file !== 'README.md')
    .toSorted()
    .flatMap((file) => goalRows(file, readFileSync(join(FOLDER, file), 'utf8')));
  const head = ['benchmark', ...GOAL_HEAD, 'load'];
  writeFileSync(join(FOLDER, 'README.md'), `${HEAD}\n\n${table(head, rows)}\n`);
}
