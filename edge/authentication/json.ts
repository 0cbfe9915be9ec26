const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The value that these UTF-8 bytes spell, or undefined when they spell none. */
export function parseJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(utf8.decode(bytes));
  } catch {
    return undefined;
  }
}
