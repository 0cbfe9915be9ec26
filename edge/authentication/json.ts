const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Parses UTF-8 JSON; undefined if the bytes are not valid UTF-8 or not valid JSON. */
export function parseJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(utf8.decode(bytes));
  } catch {
    return undefined;
  }
}
