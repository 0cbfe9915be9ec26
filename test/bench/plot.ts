import type { Frame } from './flames.ts';
import type { Report } from './report.ts';
import { median } from './rounds.ts';

const WIDTH = 760;
const LABELS = 260;
const RIGHT = 80;
const ROW = 26;
const HEAD = 34;
const DOT = 3;
const LINE_ROW = 60;

const STYLE = `text{font:13px sans-serif;fill:#444}.caption{font-weight:bold}.axis{stroke:#ccc}
.sample{fill:#3a7ca5;fill-opacity:.45}.median{stroke:#c1440e;stroke-width:2}
.line{fill:none;stroke:#3a7ca5;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#ccc}.axis{stroke:#555}}`;

const escaped = (text: string) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');

/** Draws one table as a strip of dots per row, from 0: every sample, and a line at the median. A row is one line of text. */
function strips(caption: string, rows: Record<string, number[]>, top: number): string[] {
  const most = Math.max(...Object.values(rows).flat()) || 1;
  const across = (value: number) =>
    (LABELS + (Math.max(value, 0) / most) * (WIDTH - LABELS - RIGHT)).toFixed(1);
  const parts = Object.entries(rows).map(([row, samples], index) => {
    const y = top + HEAD + index * ROW;
    const middle = median(samples);
    return [
      `<text x="${LABELS - 12}" y="${y + 4}" text-anchor="end">${escaped(row)}</text>`,
      `<line class="axis" x1="${LABELS}" x2="${WIDTH - RIGHT}" y1="${y}" y2="${y}"/>`,
      ...samples.map((value) => `<circle class="sample" cx="${across(value)}" cy="${y}" r="${DOT}"/>`),
      `<line class="median" x1="${across(middle)}" x2="${across(middle)}" y1="${y - 8}" y2="${y + 8}"/>`,
      `<text x="${WIDTH - RIGHT + 10}" y="${y + 4}">${middle.toPrecision(3)}</text>`,
    ].join('');
  });
  return [`<text class="caption" x="8" y="${top + 14}">${escaped(caption)}</text>`, ...parts];
}

/** Draws values over time as one line per row, from 0. */
function lines(caption: string, rows: Record<string, number[]>, top: number): string[] {
  const parts = Object.entries(rows).map(([row, values], index) => {
    const foot = top + HEAD + (index + 1) * LINE_ROW - 20;
    const most = Math.max(...values) || 1;
    const points = values.map((value, n) => {
      const x = LABELS + (n / (values.length - 1 || 1)) * (WIDTH - LABELS - RIGHT);
      return `${x.toFixed(1)},${(foot - (value / most) * (LINE_ROW - 16)).toFixed(1)}`;
    });
    return [
      `<text x="${LABELS - 12}" y="${foot}" text-anchor="end">${escaped(row)}</text>`,
      `<line class="axis" x1="${LABELS}" x2="${WIDTH - RIGHT}" y1="${foot}" y2="${foot}"/>`,
      `<polyline class="line" points="${points.join(' ')}"/>`,
      `<text x="${WIDTH - RIGHT + 10}" y="${foot}">${most.toPrecision(3)}</text>`,
    ].join('');
  });
  return [`<text class="caption" x="8" y="${top + 14}">${escaped(caption)}</text>`, ...parts];
}

/** Draws every sample of the report as SVG. */
export function renderPlot({ title, times = {}, counts = {}, timeSeries = {} }: Report): string {
  const inMilliseconds = Object.entries(times).map(([caption, rows]) => [`${caption}, ms`, rows] as const);
  const parts: string[] = [];
  let top = 8;
  for (const [caption, rows] of [...inMilliseconds, ...Object.entries(counts)]) {
    parts.push(...strips(caption, rows, top));
    top += HEAD + Object.keys(rows).length * ROW;
  }
  for (const [caption, rows] of Object.entries(timeSeries)) {
    parts.push(...lines(caption, rows, top));
    top += HEAD + Object.keys(rows).length * LINE_ROW;
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${top}" width="${WIDTH}" role="img">
<title>${escaped(title)}</title>
<style>${STYLE}</style>
${parts.join('\n')}
</svg>
`;
}

const FLAMES_WIDTH = 1400;
const FRAME = 15;
/** Narrower frames are left out. */
const NARROWEST = 2;
const LETTER = 6.2;

const FLAMES_STYLE = `text{font:10px monospace;fill:#222;pointer-events:none}.caption{font:bold 13px sans-serif;fill:#444}
rect{stroke:#fff;stroke-width:.5}@media(prefers-color-scheme:dark){.caption{fill:#ccc}}`;

/** Equal names have equal colours. */
function colourOf(name: string): string {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + (letter.codePointAt(0) ?? 0)) % 997;
  return `hsl(${15 + (hash % 40)},${60 + (hash % 7) * 5}%,${66 + (hash % 5) * 3}%)`;
}

/** Draws what a function calls below it. */
function frames(
  { name, ms, callees }: Frame,
  left: number,
  top: number,
  perMs: number,
): { parts: string[]; foot: number } {
  const width = ms * perMs;
  if (width < NARROWEST) return { parts: [], foot: top };
  const letters = Math.floor((width - 4) / LETTER);
  const text = name.length > letters ? `${name.slice(0, Math.max(letters - 1, 0))}…` : name;
  const label =
    letters > 2 ? `<text x="${(left + 2).toFixed(1)}" y="${top + 11}">${escaped(text)}</text>` : '';
  const parts = [
    `<rect x="${left.toFixed(1)}" y="${top}" width="${width.toFixed(1)}" height="${FRAME}" fill="${colourOf(name)}"><title>${escaped(name)}: ${ms.toFixed(2)} ms</title></rect>${label}`,
  ];
  let foot = top + FRAME;
  let x = left;
  for (const callee of callees.toSorted((a, b) => b.ms - a.ms)) {
    const drawn = frames(callee, x, top + FRAME, perMs);
    parts.push(...drawn.parts);
    foot = Math.max(foot, drawn.foot);
    x += callee.ms * perMs;
  }
  return { parts, foot };
}

/** Draws all flames in one scale, as SVG. */
export function renderFlames(title: string, flames: Record<string, Frame[]>): string {
  const most = Math.max(
    ...Object.values(flames)
      .flat()
      .map(({ ms }) => ms),
  );
  const parts: string[] = [];
  let top = 8;
  for (const [caption, roots] of Object.entries(flames)) {
    parts.push(`<text class="caption" x="8" y="${top + 14}">${escaped(caption)}</text>`);
    top += 24;
    for (const root of roots) {
      const drawn = frames(
        { ...root, name: `${root.name}, ${root.ms.toFixed(1)} ms` },
        8,
        top,
        (FLAMES_WIDTH - 16) / most,
      );
      parts.push(...drawn.parts);
      top = drawn.foot + 12;
    }
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${FLAMES_WIDTH} ${top}" width="${FLAMES_WIDTH}" role="img">
<title>${escaped(title)}</title>
<style>${FLAMES_STYLE}</style>
${parts.join('\n')}
</svg>
`;
}
