import { CREATE_TEXT } from '../../strings/create.ts';

/** PostgreSQL cuts longer names. */
export const MAX_BYTES = 63;
const LENGTH = { min: 3, max: 48 };

/** Branch names are ASCII, so their characters are bytes. */
export const lengthOf = (name: string): number => name.length;

/** What is wrong with the name of a branch, as far as it is known without asking the gateway. */
export function nameProblem(name: string, longest: number): string | null {
  if (!/^[a-z0-9_-]*$/.test(name)) return CREATE_TEXT.nameCharacters;
  if (name === 'main') return CREATE_TEXT.nameMain;
  if (name.length < LENGTH.min) return CREATE_TEXT.nameShort(LENGTH.min);
  const most = Math.min(longest, LENGTH.max);
  return name.length > most ? CREATE_TEXT.nameLong(most) : null;
}
