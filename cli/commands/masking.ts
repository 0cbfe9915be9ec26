import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { printSections, say } from '../output.ts';
import { openSession, projectOf } from '../session.ts';

const MASKING = '/api/v1/projects/{project_id}/masking';
const FIELDS = ['version', 'unlisted', 'changed_by', 'changed_at', 'etag'];

function printPolicy(command: Command, policy: Schemas['MaskingPolicy']): void {
  const rules = { title: 'Rules', records: policy.rules, columns: ['table', 'column', 'with', 'args'] };
  printSections(command, policy, FIELDS, [rules]);
}

const get = () =>
  new Command('get')
    .description('Show the masking policy of a project')
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      printPolicy(command, await dataOf(session.client.api.GET(MASKING, { params: { path } })));
    });

/** What a file has of a policy. The other fields of a printed record are left out. @throws CommandError */
async function readPolicy(file: string) {
  const source =
    file === '-'
      ? await text(process.stdin)
      : await readFile(file, 'utf8').catch((error: Error) => {
          throw new CommandError('usage', `--file ${file} cannot be read (${error.message}).`);
        });
  let policy: unknown;
  try {
    policy = JSON.parse(source);
  } catch {
    throw new CommandError('usage', `--file ${file} is not valid JSON.`);
  }
  if (typeof policy !== 'object' || policy === null || !('rules' in policy))
    throw new CommandError('usage', `--file ${file} has no rules. It must be {"rules": […], "unlisted": …}.`);
  const { version, etag, changed_by, changed_at, ...body } = policy as Schemas['MaskingPolicy'];
  return body;
}

interface Setting {
  file: string;
  ifMatch?: string;
}

const set = () =>
  new Command('set')
    .description('Replace the masking policy of a project by that of a file')
    .requiredOption('-f, --file <file>', 'JSON with `rules` and `unlisted`; `-` reads standard input')
    .option('--if-match <etag>', 'only if the policy is still the one with this etag')
    .action(async ({ file, ifMatch }: Setting, command: Command) => {
      const body = await readPolicy(file);
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const header = ifMatch === undefined ? {} : { 'if-match': ifMatch };
      const policy = await dataOf(session.client.api.PUT(MASKING, { params: { path, header }, body }));
      say(`The masking policy has version ${policy.version}.`);
      printPolicy(command, policy);
    });

export const maskingCommand = (): Command =>
  [get(), set()].reduce(
    (group, command) => group.addCommand(command),
    new Command('masking').description('The masking policy: how values are replaced in masked data'),
  );
