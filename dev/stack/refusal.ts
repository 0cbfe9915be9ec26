/** Why the stack cannot start or continue, and what to do, in one line for the user. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
}
