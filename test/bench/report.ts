import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Frame } from './flames.ts';
import { renderFlames, renderPlot } from './plot.ts';
import { median } from './rounds.ts';

/** Where the reports are stored. */
export const FOLDER = join(import.meta.dirname, '../../docs/benchmarks');

/** A measured value whose upper bound is `limit`, or lower bound if `atLeast`. Null: it has no limit. */
export interface Goal {
  name: string;
  measured: number;
  limit: number | null;
  atLeast?: true;
  unit:
    | '×'
    | '%'
    | 'ms'
    | 'KB'
    | 'MB'
    | 'attempts'
    | 'requests'
    | 'trips'
    | 'transactions'
    | 'sessions'
    | 'items';
}

export interface Report {
  title: string;
  /** How it was measured, one paragraph. */
  method: string;
  /** Versions and other conditions; `run.ts` adds the machine. */
  setting?: Record<string, string>;
  goals: Goal[];
  /** Why a goal is missed and what was tried. */
  findings?: string;
  /** Tables of milliseconds: caption → row → every sample. */
  times?: Record<string, Record<string, number[]>>;
  /** Tables of counts, in the same form. */
  counts?: Record<string, Record<string, number[]>>;
  /** Values at equal time steps, drawn as lines without a table: caption → row → values. */
  timeSeries?: Record<string, Record<string, number[]>>;
  /** Flame graphs, in a picture of their own: caption → flames of the processes. */
  flames?: Record<string, Frame[]>;
}

export const isMet = ({ measured, limit, atLeast }: Goal) =>
  limit === null || (atLeast ? measured >= limit : measured <= limit);

/** Writes `<name>.json`, which is not tracked, `<name>.svg` and `<name>.md` into docs/benchmarks, and `<name>-flames.svg` if there are flames. */
export function writeReport(name: string, { flames, ...report }: Report): void {
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(join(FOLDER, `${name}.json`), `${JSON.stringify(report, rounded, 2)}\n`);
  writeFileSync(join(FOLDER, `${name}.svg`), renderPlot(report));
  const pictures = [`![Every sample, and the medians](${name}.svg)`];
  if (flames) {
    writeFileSync(join(FOLDER, `${name}-flames.svg`), renderFlames(report.title, flames));
    pictures.push(`![Flame graphs](${name}-flames.svg)`);
  }
  writeFileSync(join(FOLDER, `${name}.md`), `${[renderReport(report), ...pictures].join('\n')}\n`);
}

/** The head of the table of goals, which `writeSummary` finds on each page. */
export const GOAL_HEAD = ['goal', 'measured', 'limit', 'measured ÷ limit', ''];

/** The report in Markdown, which reads well in a terminal too. */
export function renderReport(report: Report): string {
  const { title, method, setting = {}, goals, findings, times = {}, counts = {} } = report;
  const sections = [
    `# ${title}`,
    method,
    table(['setting', ''], Object.entries(setting)),
    table(GOAL_HEAD, goals.map(goalCells)),
    ...(findings ? [findings] : []),
    ...Object.entries(times).flatMap(([caption, rows]) => [
      `${caption}, in milliseconds:`,
      samplesTable(rows),
    ]),
    ...Object.entries(counts).flatMap(([caption, rows]) => [`${caption}:`, samplesTable(rows)]),
  ];
  return `${sections.join('\n\n')}\n`;
}

const samplesTable = (rows: Record<string, number[]>) =>
  table(
    ['', 'median', 'min', 'max', 'runs'],
    Object.entries(rows).map(([row, samples]) => [
      row,
      ...[median(samples), Math.min(...samples), Math.max(...samples)].map((value) => value.toFixed(1)),
      String(samples.length),
    ]),
  );

/** The cells of a goal: its name, measured, limit, measured ÷ limit, result. */
export function goalCells(goal: Goal): string[] {
  const { name, measured, limit, atLeast, unit } = goal;
  const found = [name, `${measured.toFixed(2)} ${unit}`];
  if (limit === null) return [...found, '', '', 'no limit'];
  const share = limit === 0 ? '' : (measured / limit).toFixed(2);
  return [...found, `${atLeast ? '≥' : '≤'} ${limit} ${unit}`, share, isMet(goal) ? 'met' : '**missed**'];
}

const rounded = (_key: string, value: unknown) =>
  typeof value === 'number' ? Number(value.toFixed(3)) : value;

/** A table in Markdown. */
export function table(head: string[], rows: string[][]): string {
  const lines = [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`);
  return lines.join('\n');
}
