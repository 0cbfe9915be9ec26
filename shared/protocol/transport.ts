import { CLOSES, type CloseReason } from './closes.ts';

/** A socket as the logic of the link sees it. Tests script hostile peers behind it. */
export interface Transport {
  send(text: string): void;
  close(code: number, reason: string): void;
}

export interface Clock {
  /** Milliseconds: of the gateway Unix time, of the agent since it began. */
  now(): number;
  /** Runs `task` once after `milliseconds`, unless the returned function is called before. */
  after(milliseconds: number, task: () => void): () => void;
}

export const closeBecause = (transport: Transport, reason: CloseReason) =>
  transport.close(CLOSES[reason], reason);
