/** Blocks of a table from the first number up to, and without, the second. Ordered, and none touches the next. */
export type BlockRanges = readonly (readonly [number, number])[];

/** No table has more blocks. */
export const BLOCKS_MAX = 0xfffffffe;

/** Sorts ranges and joins those that touch. */
export function joined(ranges: BlockRanges): BlockRanges {
  const result: [number, number][] = [];
  for (const [from, to] of ranges.toSorted(([a], [b]) => a - b)) {
    const last = result.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else if (from < to) result.push([from, to]);
  }
  return result;
}

/** The blocks of `[0, end)` that are in none of the ranges. */
export function without(ranges: BlockRanges, end: number): BlockRanges {
  const result: [number, number][] = [];
  let at = 0;
  for (const [from, to] of ranges) {
    if (from > at) result.push([at, Math.min(from, end)]);
    at = Math.max(at, to);
  }
  if (at < end) result.push([at, end]);
  return result.filter(([from, to]) => from < to);
}
