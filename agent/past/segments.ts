/** Names of WAL segments: the time line, and the position in two parts, 8 hexadecimal digits each. */

const SEGMENT = /^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})$/;
const BYTES_PER_PART = 2 ** 32;

export const isSegment = (name: string): boolean => SEGMENT.test(name);

/** @param segmentBytes `wal_segment_size` @returns which segment it is on any time line, from 0; null for another file */
export function segmentNumber(name: string, segmentBytes: number): number | null {
  const [, , part = '', rest = ''] = SEGMENT.exec(name) ?? [];
  if (part === '') return null;
  return Number.parseInt(part, 16) * (BYTES_PER_PART / segmentBytes) + Number.parseInt(rest, 16);
}

/** @returns the first segment from `first` on that is missing although a later one is there; null: none is */
export function firstGap(present: ReadonlySet<number>, first: number): number | null {
  const last = Math.max(-1, ...present);
  for (let number = first; number <= last; number += 1) if (!present.has(number)) return number;
  return null;
}
