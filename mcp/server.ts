import { McpServer } from '@modelcontextprotocol/server';
import { JobError, ResponseError } from '../client/response-error.ts';
import { type Tool, type ToolContext, ToolError } from './tool.ts';
import { TOOLS } from './tools.ts';

const INSTRUCTIONS =
  'PostgreSQL databases with copy-on-write branches. Make a branch before you change anything, and delete it when you are done.';

interface Detail {
  path: string;
  message: string;
}

/** What is wrong, for the agent. Failures of this program are not described. */
function explain(error: unknown): string {
  if (error instanceof ResponseError) {
    const details = ((error.fields.details as Detail[] | undefined) ?? []).map(
      ({ path, message }) => `\n${path}: ${message}`,
    );
    return `${error.message}${error.code === null ? '' : ` (${error.code})`}${details.join('')}`;
  }
  if (error instanceof JobError) return `${error.message} (${error.code})`;
  if (error instanceof ToolError) return error.message;
  if (error instanceof Error && error.name === 'AbortError') return 'Cancelled.';
  return 'The call failed.';
}

const text = (content: string) => ({ content: [{ type: 'text' as const, text: content }] });

/** A server with all tools. @param report gets every failure that the agent is not told about */
export function createServer(
  context: Omit<ToolContext, 'signal'>,
  { version, report }: { version: string; report: (error: unknown) => void },
): McpServer {
  const server = new McpServer({ name: 'branchgate', version }, { instructions: INSTRUCTIONS });
  const call = async ({ run }: Tool, input: unknown, signal: AbortSignal) => {
    try {
      return text(JSON.stringify(await run({ ...context, signal }, input)));
    } catch (error) {
      const isExpected = [ResponseError, JobError, ToolError].some((kind) => error instanceof kind);
      if (!isExpected && !signal.aborted) report(error);
      return { ...text(explain(error)), isError: true };
    }
  };
  for (const tool of TOOLS) {
    const { name, description, effect: annotations, input: inputSchema } = tool;
    server.registerTool(name, { description, annotations, inputSchema }, (input, { mcpReq }) =>
      call(tool, input, mcpReq.signal),
    );
  }
  return server;
}
