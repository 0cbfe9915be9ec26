import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOLDER, goalCells, type Report, table } from './report.ts';

const HEAD = `# Benchmarks

The latest results of \`npm run bench\`. \`npm run bench -- <name>\` repeats one benchmark and updates this page. Both
sides of every ratio are measured interleaved in one run. Each page has its method, its samples and, where a goal is
missed, the reason and what was tried.`;

/** Updates the table of contents of docs/benchmarks from its reports. */
export function writeSummary(): void {
  const rows = readdirSync(FOLDER)
    .filter((file) => file.endsWith('.json'))
    .toSorted()
    .flatMap((file) => {
      const { title, setting = {}, goals }: Report = JSON.parse(readFileSync(join(FOLDER, file), 'utf8'));
      const page = `[${title}](${file.replace('.json', '.md')})`;
      return goals.map((goal) => [page, ...goalCells(goal), setting['load at start'] ?? '']);
    });
  const head = ['benchmark', 'goal', 'measured', 'limit', 'measured ÷ limit', '', 'load'];
  writeFileSync(join(FOLDER, 'README.md'), `${HEAD}\n\n${table(head, rows)}\n`);
}
