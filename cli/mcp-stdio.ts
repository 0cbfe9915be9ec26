import { serveStdio } from '@modelcontextprotocol/server/stdio';
import type { BranchgateClient } from '../client/client.ts';
import { rehearseMigration } from '../mcp/rehearse-migration.ts';
import { createServer } from '../mcp/server.ts';
import { TOOLS } from '../mcp/tools.ts';
import { runStatements } from './run-statements.ts';

/** The tools of every transport, and one that connects to a database. */
const LOCAL_TOOLS = [...TOOLS, rehearseMigration(runStatements)];

/**
 * Serves the tools on standard input and output until the input ends. It is a bundle of its own, so that no
 * other command loads the protocol.
 */
export function serveTools(
  context: { client: BranchgateClient; project: string | null },
  options: { version: string; onFailure: (error: unknown) => string },
): void {
  serveStdio(() => createServer(context, LOCAL_TOOLS, options), { onerror: options.onFailure });
}
