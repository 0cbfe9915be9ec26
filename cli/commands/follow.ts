import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { bytes } from '../../shared/format.ts';
import { isJson, printRecord, printRecords, say } from '../output.ts';
import { openSession, projectOf } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { listingFindings, printFindings, readHiddenUrl } from './import.ts';

interface FollowOptions {
  from: string;
  table?: string[];
  publication?: string;
}

export const followCommand = () =>
  new Command('follow')
    .description('Check whether main could follow a PostgreSQL database elsewhere')
    .requiredOption('--probe', 'only check the source; nothing is changed there or here')
    .requiredOption(
      '--from <source>',
      'where the URL of the source is read: `@file`, or `-` for standard input',
    )
    .option('--table <table...>', 'only these tables, with their schema unless it is public')
    .option('--publication <name>', 'a publication that exists at the source')
    .addHelpText(
      'after',
      `
The database host connects to the source, so its address has to be public. No record, log or reply shows the password.
Everything that is wrong is listed, with the statement that mends it.`,
    )
    .action(async ({ from, table: tables, publication }: FollowOptions, command: Command) => {
      const source_url = await readHiddenUrl(from);
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const body = { source_url, ...(tables && { tables }), ...(publication && { publication }) };
      const probe = session.client.api.POST('/api/v1/projects/{project_id}/follow/probe', {
        params: { path },
        body,
      });
      const checked = withProgress('Checking the source', () => dataOf(probe));
      report(command, await listingFindings(command, checked));
    });

function report(command: Command, probe: Schemas['FollowProbe']): void {
  if (isJson(command)) {
    printRecord(command, probe);
    return;
  }
  const { source, tables, has_more, warnings } = probe;
  printRecords(command, tables, ['schema', 'table', 'rows', 'bytes', 'follows']);
  if (has_more) say('There are more tables than are listed.');
  printFindings(warnings);
  say(
    `PostgreSQL ${source.version} at ${source.host} can be followed: ${bytes(source.total_bytes)} with indexes.`,
  );
}
