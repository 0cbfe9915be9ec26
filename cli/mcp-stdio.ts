import { serveStdio } from '@modelcontextprotocol/server/stdio';
import type { BranchgateClient } from '../client/client.ts';
import { createServer } from '../mcp/server.ts';

/**
 * Serves the tools on standard input and output until the input ends. It is a bundle of its own, so that no other
 * command loads the protocol.
 */
export function serveTools(
  context: { client: BranchgateClient; project: string | null },
  options: { version: string; onFailure: (error: unknown) => string },
): void {
  serveStdio(() => createServer(context, options), { onerror: options.onFailure });
}
