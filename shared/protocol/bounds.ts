/**
 * What each side of the link holds the other one to. Times are in milliseconds.
 * Both sides apply all of them to what they receive: either may be broken, or not who it says it is.
 */
export const BOUNDS = {
  /** UTF-8 bytes of one message. The largest honest one is the inventory of a host with 4,000 databases. */
  messageBytes: 1_048_576,
  /** Objects within arrays within objects; the deepest honest message has 6. Deeper ones are made to exhaust a stack. */
  nestingDepth: 16,
  /** Calls without a reply. Keeps a stuck host from piling up work on both sides. */
  callsInFlight: 64,
  /** Of one host. An honest one sends a measurement a project and minute; in tests, a second. */
  notificationsPerMinute: 6_000,
  /** From the socket's opening to its welcome: three messages. A socket that stays mute holds nothing for long. */
  handshakeTime: 10_000,
  /** Sockets of one host in a handshake; the oldest gives way, so that strangers can't keep the agent out. */
  unfinishedHandshakes: 8,
  /** Between two beats of the agent. */
  heartbeat: 15_000,
  /** Two beats. A link that has been silent for so long is taken for lost, whatever the socket says. */
  silence: 30_000,
} as const;

/** Tests pass their own, shorter ones. */
export type Bounds = Readonly<Record<keyof typeof BOUNDS, number>>;
