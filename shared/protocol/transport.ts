import { CLOSES, type CloseReason } from './closes.ts';

/** The part of a socket that the link uses. Tests implement hostile peers with it. */
export interface Transport {
  send(text: string): void;
  close(code: number, reason: string): void;
}

export interface Clock {
  /** Milliseconds: Unix time at the gateway, monotonic at the agent. */
  now(): number;
  /** Runs `task` once after `milliseconds`, unless it is cancelled with the returned function. */
  after(milliseconds: number, task: () => void): () => void;
}

export const closeBecause = (transport: Transport, reason: CloseReason) =>
  transport.close(CLOSES[reason], reason);
