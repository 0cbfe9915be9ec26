import { onTestFinished } from 'vitest';

/** One event of a stream of server-sent events (HTML Standard 9.2). */
export interface ServerEvent<D> {
  id: string;
  event: string;
  data: D;
}

/** Collects events until the stream ends, `abort` is called or the test is over. @param outlives the test */
export function listenTo<D>(response: Response, abort: AbortController, outlives = false) {
  const events: ServerEvent<D>[] = [];
  const listener = { events, ended: false };
  if (!outlives) onTestFinished(() => abort.abort());
  const texts = response.body?.pipeThrough(new TextDecoderStream()) as AsyncIterable<string> | undefined;
  const listen = async () => {
    let rest = '';
    for await (const text of texts ?? []) {
      const blocks = (rest + text).split('\n\n');
      rest = blocks.pop() ?? '';
      events.push(...blocks.flatMap((block) => readEvent<D>(block) ?? []));
    }
    listener.ended = true;
  };
  // An aborted stream rejects.
  void listen().catch(() => {});
  return listener;
}

/** @returns null for a comment */
export function readEvent<D>(block: string): ServerEvent<D> | null {
  const fields = new Map(
    block.split('\n').map((line) => {
      const [name = ''] = line.split(': ');
      return [name, line.slice(name.length + 2)];
    }),
  );
  const data = fields.get('data');
  if (data === undefined) return null;
  return { id: fields.get('id') ?? '', event: fields.get('event') ?? '', data: JSON.parse(data) };
}
