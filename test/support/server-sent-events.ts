/** One event of a stream of server-sent events (HTML Standard 9.2). */
export interface ServerEvent<D> {
  id: string;
  event: string;
  data: D;
}

/** Yields the events of a response until its stream ends. */
export async function* serverEvents<D>({ body }: Response): AsyncGenerator<ServerEvent<D>> {
  if (!body) return;
  let rest = '';
  for await (const text of body.pipeThrough(new TextDecoderStream()) as unknown as AsyncIterable<string>) {
    const blocks = (rest + text).split('\n\n');
    rest = blocks.pop() ?? '';
    for (const block of blocks) {
      const event = readEvent<D>(block);
      if (event) yield event;
    }
  }
}

/** @returns null for a comment */
function readEvent<D>(block: string): ServerEvent<D> | null {
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
