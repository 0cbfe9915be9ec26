import type { z } from 'zod';
import type { BranchgateClient } from '../client/client.ts';

/** What a tool works with: the API, as the credential of the caller may use it. */
export interface ToolContext {
  client: BranchgateClient;
  /** ID of the project of calls that name none; null if there is no such project. */
  project: string | null;
  /** Aborted when the client cancels the call. */
  signal: AbortSignal;
}

/** What a client may assume about a tool (MCP: tool annotations). */
interface Effect {
  readOnlyHint: boolean;
  destructiveHint: boolean;
}

export const READS: Effect = { readOnlyHint: true, destructiveHint: false };
export const ADDS: Effect = { readOnlyHint: false, destructiveHint: false };
export const DESTROYS: Effect = { readOnlyHint: false, destructiveHint: true };

export interface Tool {
  name: string;
  description: string;
  effect: Effect;
  input: z.ZodObject;
  /** @returns what the agent reads, as JSON */
  run(context: ToolContext, input: unknown): Promise<unknown>;
}

/** A row of the table of tools. */
export const tool = <Input extends z.ZodObject>(row: {
  name: string;
  description: string;
  effect: Effect;
  input: Input;
  run(context: ToolContext, input: z.output<Input>): Promise<unknown>;
}): Tool => ({ ...row, run: (context, input) => row.run(context, row.input.parse(input)) });

/** A call that cannot go on: what is wrong, then what to do. */
export class ToolError extends Error {
  override readonly name = 'ToolError';
}
