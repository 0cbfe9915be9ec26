import './monitoring.css';
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Annotation } from './annotations.ts';
import { aligned, type Point } from './metrics.ts';

const HEIGHT = 168;
const FONT = '11px "Geist Variable", sans-serif';

interface Props {
  points: readonly Point[];
  /** Points of the branch that it is compared with. */
  compared: readonly Point[];
  start: number;
  end: number;
  format: (value: number) => string;
  /** Distances of the marks on the axis of values; default: those of the library. */
  steps?: number[] | undefined;
  annotations: readonly Annotation[];
  /** Charts with one key show the same time under the cursor. */
  syncKey: string;
  /** What is under the cursor; null: it has left. */
  onRead?: (reading: Reading | null) => void;
  /** A span that was chosen by dragging, in Unix seconds; null: all of it. */
  onZoom?: (span: Span | null) => void;
}

export interface Span {
  start: number;
  end: number;
}

export interface Reading {
  at: number;
  /** Of the branch, and of the one that it is compared with; null: none at this time. */
  values: (number | null)[];
}

/** The least distance of two marks in pixels: at least three fit, whatever the values are. */
const MARK_SPACE = 22;
/** A selection of fewer pixels is a click. */
const DRAGGED_PX = 6;

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });
const DAY_SECONDS = 86_400;

/** The time of a mark on the axis: the clock within a day, the date above that. */
const timeOf = (at: number, range: number) => (range > DAY_SECONDS ? DAY : CLOCK).format(at * 1000);

const color = (element: Element, name: string) => getComputedStyle(element).getPropertyValue(name).trim();

/** A canvas needs a plain colour, which a browser makes of any CSS one. */
function plainColor(element: HTMLElement, name: string): string {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  element.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value || color(element, name);
}

/** A label that rounding has made equal to the one before would say nothing. */
const withoutRepetition = (labels: readonly string[]) =>
  labels.map((label, index) => (label === labels[index - 1] ? '' : label));

/** One value is no line. */
const isSingle = (u: uPlot, series: number) =>
  (u.data[series] ?? []).filter((value) => value !== null && value !== undefined).length === 1;

export function Chart({
  points,
  compared,
  start,
  end,
  format,
  steps,
  annotations,
  syncKey,
  ...calls
}: Props) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef({ annotations, start, end });
  shown.current = { annotations, start, end };
  const handlers = useRef(calls);
  handlers.current = calls;

  useEffect(() => {
    const element = holder.current;
    if (!element) return;
    const colors = Object.fromEntries(
      ['--series-1', '--series-2', '--series-fill', '--quiet', '--line', '--main'].map((name) => [
        name,
        plainColor(element, name),
      ]),
    ) as Record<string, string>;
    const axis = {
      stroke: colors['--quiet'] ?? '',
      font: FONT,
      grid: { stroke: colors['--line'] ?? '', width: 1 },
    };
    const drawAnnotations = (u: uPlot) => {
      u.ctx.save();
      u.ctx.strokeStyle = colors['--main'] ?? '';
      u.ctx.setLineDash([4, 3]);
      for (const { at } of shown.current.annotations) {
        const x = u.valToPos(at, 'x', true);
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    };
    const read = (u: uPlot) => {
      const index = u.cursor.idx;
      const at = index == null ? undefined : u.data[0][index];
      if (index == null || at === undefined) return handlers.current.onRead?.(null);
      handlers.current.onRead?.({ at, values: u.data.slice(1).map((values) => values[index] ?? null) });
    };
    const zoom = (u: uPlot) => {
      const { left, width } = u.select;
      if (width < DRAGGED_PX) return;
      handlers.current.onZoom?.({ start: u.posToVal(left, 'x'), end: u.posToVal(left + width, 'x') });
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    };
    // An axis that ends below its second mark would have one number only.
    const least = 2 * (steps?.[0] ?? 0);
    const line = (name: string) => ({
      stroke: colors[name] ?? '',
      width: 1.5,
      points: { show: isSingle, size: 7, fill: colors[name] ?? '' },
      spanGaps: true,
    });
    const u = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        cursor: {
          sync: { key: syncKey },
          y: false,
          points: { size: 6 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => handlers.current.onZoom?.(null) as never },
        },
        legend: { show: false },
        scales: {
          x: { time: true, range: () => [shown.current.start, shown.current.end] },
          y: { range: (_, __, most) => [0, Math.max(most > 0 ? most * 1.12 : 1, least)] },
        },
        axes: [
          {
            ...axis,
            // Three marks fit into the narrowest chart.
            space: 48,
            size: 28,
            grid: { show: false },
            values: (u, marks) =>
              withoutRepetition(
                marks.map((at) => timeOf(at, (u.scales.x?.max ?? 0) - (u.scales.x?.min ?? 0))),
              ),
          },
          {
            ...axis,
            size: 62,
            space: MARK_SPACE,
            ...(steps && { incrs: steps }),
            values: (_, values) => withoutRepetition(values.map((value) => format(value))),
          },
        ],
        // Only the first: two areas would hide each other.
        series: [{}, { ...line('--series-1'), fill: colors['--series-fill'] ?? '' }, line('--series-2')],
        hooks: { draw: [drawAnnotations], setCursor: [read], setSelect: [zoom] },
      },
      [[], [], []],
      element,
    );
    plot.current = u;
    const observer = new ResizeObserver(() => u.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      u.destroy();
      plot.current = null;
    };
  }, [format, steps, syncKey]);

  useEffect(() => {
    plot.current?.setData(aligned(points, compared) as uPlot.AlignedData);
  }, [points, compared]);

  useEffect(() => {
    plot.current?.setScale('x', { min: start, max: end });
  }, [start, end]);

  return <div ref={holder} className="chart" aria-hidden="true" />;
}
