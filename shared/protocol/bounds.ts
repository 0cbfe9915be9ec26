/**
 * Bounds on the peer of a link; times in milliseconds.
 * Both sides enforce all of them on received messages, because either peer may be faulty or an impostor.
 */
export const BOUNDS = {
  /** UTF-8 bytes of one message. The largest legitimate one is a page of the inventory. */
  messageBytes: 1_048_576,
  /**
   * Levels of objects and arrays; the deepest legitimate message has 6. Deep nesting can exhaust a parser's
   * stack.
   */
  nestingDepth: 16,
  /** Calls without a reply. Limits the work that accumulates on both sides when a host is stuck. */
  callsInFlight: 64,
  /** Per host. A legitimate one sends a measurement per project and minute; in tests, per second. */
  notificationsPerMinute: 6_000,
  /** From the socket's opening to its welcome: three messages. Limits the resources of silent sockets. */
  handshakeTime: 10_000,
  /**
   * Sockets of one host in a handshake. The oldest is closed, so that unauthorised clients cannot lock out
   * the agent.
   */
  unfinishedHandshakes: 8,
  /** Interval of the agent's heartbeats. */
  heartbeat: 15_000,
  /**
   * Two heartbeats. A link that was silent for this long counts as lost, whatever the state of the socket.
   */
  silence: 30_000,
} as const;

/** Tests pass shorter times. */
export type Bounds = Readonly<Record<keyof typeof BOUNDS, number>>;
