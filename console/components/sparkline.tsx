import { BRANCH_TEXT } from '../strings/branch.ts';

const WIDTH = 72;
const HEIGHT = 20;

/** The course of a value over the last hour, and its last value as text. */
export function Sparkline({ values }: { values: readonly number[] }) {
  const top = Math.max(1, ...values);
  const last = values.at(-1) ?? 0;
  // One value is a line as well.
  const drawn = values.length === 1 ? [last, last] : values;
  const step = WIDTH / Math.max(1, drawn.length - 1);
  const path = drawn
    .map(
      (value, index) =>
        `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`,
    )
    .join(' ');
  return (
    <span className="sparkline" role="img" aria-label={BRANCH_TEXT.connections(last, top)}>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
        <polyline points={path} fill="none" stroke="currentColor" strokeWidth="1.4" strokeLinejoin="round" />
      </svg>
      <span>{last}</span>
    </span>
  );
}
