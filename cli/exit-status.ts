/** Ends this process with that code once everything is cleaned up. */
export function exitWith(code: number): void {
  process.exitCode = code;
}
