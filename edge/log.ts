/** Logs one JSON object per line. Callers must not pass tokens, passwords or request bodies. */
export function logEvent(event: string, fields: Record<string, unknown> = {}): void {
  console.log(JSON.stringify({ event, ...fields }));
}
