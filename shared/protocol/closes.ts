/**
 * Codes a socket of the link is closed with; 4000 is added to the HTTP status that comes nearest.
 * The name is the close reason on the wire.
 */
export const CLOSES = {
  /** The agent or the edge stops on purpose. */
  leaving: 1001,
  not_json: 4400,
  /** The handshake was refused; a refusal message went ahead and says why. */
  refused: 4403,
  handshake_late: 4408,
  /** A link of the same host with a newer epoch has taken over. */
  displaced: 4409,
  oversize: 4413,
  not_text: 4415,
  /** JSON of the wrong form, or out of turn. */
  malformed: 4422,
  too_deep: 4431,
  /** Too many unfinished handshakes, and this one was the oldest. */
  crowded: 4429,
  silent: 4504,
} as const;

export type CloseReason = keyof typeof CLOSES;
