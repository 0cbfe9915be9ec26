import type { z } from 'zod';
import type { Bounds } from './bounds.ts';
import type { CloseReason } from './closes.ts';

/** Why a message is invalid; its socket is closed with this reason. */
type MessageFault = Extract<CloseReason, 'not_text' | 'oversize' | 'not_json' | 'too_deep' | 'malformed'>;

export type Reading<T> = { ok: true; message: T } | { ok: false; fault: MessageFault };

/** Parses one message of the link. Cheap checks come first. */
export function readMessage<S extends z.ZodType>(
  schema: S,
  data: unknown,
  bounds: Pick<Bounds, 'messageBytes' | 'nestingDepth'>,
): Reading<z.output<S>> {
  if (typeof data !== 'string') return { ok: false, fault: 'not_text' };
  if (!fitsMessage(data, bounds)) return { ok: false, fault: 'oversize' };
  let json: unknown;
  try {
    json = JSON.parse(data);
  } catch {
    return { ok: false, fault: 'not_json' };
  }
  if (isDeeperThan(bounds.nestingDepth, json)) return { ok: false, fault: 'too_deep' };
  const reading = schema.safeParse(json);
  return reading.success ? { ok: true, message: reading.data } : { ok: false, fault: 'malformed' };
}

/** Whether the peer would accept a message of this length. */
export function fitsMessage(text: string, { messageBytes }: Pick<Bounds, 'messageBytes'>): boolean {
  if (text.length > messageBytes) return false;
  const maxBytesPerUnit = 3;
  return text.length * maxBytesPerUnit <= messageBytes || utf8Length(text) <= messageBytes;
}

function utf8Length(text: string): number {
  let bytes = 0;
  for (const character of text) {
    const point = character.codePointAt(0) ?? 0;
    bytes += point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  }
  return bytes;
}

/** Iterates over levels, because recursion could exhaust the stack, which the bound prevents. */
function isDeeperThan(limit: number, json: unknown): boolean {
  let level: object[] = [json].filter(isContainer);
  for (let depth = 0; level.length > 0; depth += 1) {
    if (depth === limit) return true;
    level = level.flatMap((container) => Object.values(container).filter(isContainer));
  }
  return false;
}

const isContainer = (value: unknown): value is object => typeof value === 'object' && value !== null;
