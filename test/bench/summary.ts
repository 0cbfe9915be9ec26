import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOLDER, goalCells, type Report, table } from './report.ts';

const HEAD = `# Benchmarks

What \`npm run bench\` measured last, part by part; \`npm run bench -- <name>\` measures one again and renews this page. Every
ratio has both sides by turns in one run. Each page has its method, its samples and, where a goal is missed, the reason
and what was tried.`;

/** Renews the table of contents of docs/benchmarks from the reports that lie there. */
export function writeSummary(): void {
  const rows = readdirSync(FOLDER)
    .filter((file) => file.endsWith('.json'))
    .toSorted()
    .flatMap((file) => {
      const { title, setting = {}, goals }: Report = JSON.parse(readFileSync(join(FOLDER, file), 'utf8'));
      const page = `[${title}](${file.replace('.json', '.md')})`;
      return goals.map((goal) => [page, ...goalCells(goal), setting['load at the beginning'] ?? '']);
    });
  const head = ['part', 'goal', 'measured', 'limit', 'measured ÷ limit', '', 'load'];
  writeFileSync(join(FOLDER, 'README.md'), `${HEAD}\n\n${table(head, rows)}\n`);
}
