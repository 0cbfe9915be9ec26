import { statSync } from 'node:fs';
import { OPERATIONS } from '../../shared/protocol/operations.ts';

/** Commands that connect to both servers, which admit the agent's system user only. */
const AS_OWNER: ReadonlySet<string> = new Set([
  ...['doctor', 'list', 'measure', 'pooler', 'make-tables'],
  ...Object.keys(OPERATIONS).map((method) => method.split('.')[0] ?? ''),
]);

/** Returns whether this command runs as the owner of `STATE_DIR` when root starts it. */
export const runsAsOwner = (words: readonly string[]): boolean =>
  AS_OWNER.has(words.find((word) => !word.startsWith('-')) ?? '');

/** Gives up root for the owner of a folder, for the rest of this process. Without root or the folder nothing changes. */
export function becomeOwnerOf(folder: string): void {
  if (process.getuid?.() !== 0) return;
  const owner = statSync(folder, { throwIfNoEntry: false });
  if (!owner || owner.uid === 0) return;
  // Node's types leave it out.
  (process as unknown as { initgroups(user: number, group: number): void }).initgroups(owner.uid, owner.gid);
  process.setgid?.(owner.gid);
  process.setuid?.(owner.uid);
}
