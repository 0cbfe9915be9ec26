import { Command } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { explain } from '../exit-codes.ts';
import { say } from '../output.ts';
import { openSession, optionsOf, projectOf } from '../session.ts';

/** Standard output belongs to the protocol, so everything else goes to standard error. */
export const mcpCommand = () =>
  new Command('mcp')
    .description('Serve tools for agents on standard input and output (Model Context Protocol)')
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const isNamed = optionsOf(command).project !== undefined || process.env.BRANCHGATE_PROJECT;
      const project = isNamed ? await projectOf(command, session) : null;
      const { serveTools } = await import('../mcp-stdio.ts');
      const version = command.parent?.version() ?? '';
      // An agent shows late what is wrong with a sign-in.
      await dataOf(session.client.api.GET('/api/v1/me'));
      const onFailure = (error: unknown) => {
        const text = explain(error);
        say(text);
        return text;
      };
      serveTools({ client: session.client, project }, { version, onFailure });
    });
