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

/** What a client may assume about a tool (MCP: tool annotations). No tool reaches beyond the service. */
interface Effect {
  readOnlyHint: boolean;
  destructiveHint: boolean;
  openWorldHint: false;
}

export const READS: Effect = { readOnlyHint: true, destructiveHint: false, openWorldHint: false };
export const ADDS: Effect = { readOnlyHint: false, destructiveHint: false, openWorldHint: false };
export const DESTROYS: Effect = { readOnlyHint: false, destructiveHint: true, openWorldHint: false };

export interface Tool {
  name: string;
  description: string;
  effect: Effect;
  input: z.ZodObject;
  /** The result has rows, names or messages that users of the database wrote. */
  hasContent?: boolean;
  /** @param input as the schema makes it. @returns what the agent reads, as JSON */
  run(context: ToolContext, input: unknown): Promise<unknown>;
}

/** A row of the table of tools. */
export const tool = <Input extends z.ZodObject>(row: {
  name: string;
  description: string;
  effect: Effect;
  input: Input;
  hasContent?: boolean;
  run(context: ToolContext, input: z.output<Input>): Promise<unknown>;
}): Tool => ({ ...row, run: (context, input) => row.run(context, input as z.output<Input>) });

/** A call that cannot go on: what is wrong, then what to do. */
export class ToolError extends Error {
  override readonly name = 'ToolError';
}
