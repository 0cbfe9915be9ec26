import { expect } from 'vitest';
import { eventually } from '../eventually.ts';

/** Opens streams. The object may still have to notice that others were cut. */
export async function openStreams<Stream extends { response: Response }>(
  count: number,
  open: () => Promise<Stream>,
): Promise<Stream[]> {
  const streams: Stream[] = [];
  await eventually(async () => {
    while (streams.length < count) {
      const stream = await open();
      expect(stream.response.status).toBe(200);
      streams.push(stream);
    }
  });
  return streams;
}
