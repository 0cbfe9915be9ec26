/** The stack can't start or go on, and why, in one line for the person at the shell. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
}
