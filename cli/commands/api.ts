import { Argument, Command } from 'commander';
import { ResponseError } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { writeJson } from '../output.ts';
import { readGiven } from '../read-text.ts';
import { openOperatorSession, openSession } from '../session.ts';

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'];

async function readBody(given: string): Promise<unknown> {
  const source = await readGiven(given);
  try {
    return JSON.parse(source);
  } catch {
    throw new CommandError('usage', 'The body is not valid JSON.');
  }
}

/** Sends any request, with the same token, retries and exit codes as the other commands. */
export const apiCommand = () =>
  new Command('api')
    .description('Send a request to the API and print the response')
    .addArgument(new Argument('<method>', METHODS.join(', ')).argParser((method) => method.toUpperCase()))
    .argument('<path>', 'for instance /api/v1/me; /platform/v1/… takes BRANCHGATE_PLATFORM_SECRET')
    .option('--data <json>', 'body; `@file` reads it from a file, `-` from standard input')
    .action(async (method: string, path: string, options: { data?: string }, command: Command) => {
      if (!METHODS.includes(method)) throw new CommandError('usage', `Give one of ${METHODS.join(', ')}.`);
      if (!/^\/(?!\/)/.test(path)) throw new CommandError('usage', 'Give a path that begins with one slash.');
      const { client } = path.startsWith('/platform/') ? openOperatorSession() : openSession(command);
      const body = options.data === undefined ? undefined : await readBody(options.data);
      // Any path is allowed here, which the types of the client do not know.
      const request = client.api.request as unknown as (
        method: string,
        path: string,
        init: object,
      ) => Promise<{ data?: unknown; error?: unknown; response: Response }>;
      const { data, error, response } = await request(method.toLowerCase(), path, { body });
      if (!response.ok) throw new ResponseError(response, error);
      if (data !== undefined) writeJson(data);
    });
