/**
 * Close codes of a link's socket (RFC 6455 section 7.4): 4000 plus the closest HTTP status.
 * The name is the close reason on the wire.
 */
export const CLOSES = {
  /** The agent or the edge shuts down. */
  leaving: 1001,
  not_json: 4400,
  /** The handshake was refused; the refusal message that was sent before contains the reason. */
  refused: 4403,
  handshake_late: 4408,
  /** Replaced by a link of the same host with a newer epoch. */
  displaced: 4409,
  /** The host was removed from the gateway. */
  removed: 4410,
  oversize: 4413,
  not_text: 4415,
  /** JSON that does not match the schema, or is out of order. */
  malformed: 4422,
  too_deep: 4431,
  /** The oldest of too many unfinished handshakes. */
  crowded: 4429,
  silent: 4504,
} as const;

export type CloseReason = keyof typeof CLOSES;
