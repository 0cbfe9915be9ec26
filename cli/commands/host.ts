import { readFile } from 'node:fs/promises';
import { Command } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { readCount } from '../option-values.ts';
import { printRecord, printRecords } from '../output.ts';
import { type OperatorSession, openOperatorSession } from '../session.ts';

const HOSTS = '/platform/v1/hosts';
const COLUMNS = ['name', 'db_host', 'direct_port', 'pooled_port', 'linked', 'draining', 'free_bytes', 'id'];

async function findHost({ client }: OperatorSession, reference: string) {
  for await (const host of client.all(HOSTS))
    if (host.id === reference || host.name === reference) return host;
  throw new CommandError('notFound', `There is no host named ${reference}. Run \`branchgate host list\`.`);
}

const list = () =>
  new Command('list').description('List database hosts').action(async (_options, command: Command) => {
    const { client } = openOperatorSession();
    printRecords(command, await take(client.all(HOSTS)), COLUMNS);
  });

interface NewHost {
  dbHost: string;
  directPort: number;
  pooledPort: number;
  ca?: string;
}

const enrol = () =>
  new Command('enrol')
    .description('Register a database host; prints the token with which its agent enrols, once')
    .argument('<name>')
    .requiredOption('--db-host <name>', 'its public name or address in connection URLs')
    .option('--direct-port <port>', 'port of PostgreSQL', readCount, 5432)
    .option('--pooled-port <port>', 'port of PgBouncer', readCount, 6432)
    .option('--ca <file>', 'certificate of its authority in PEM format (default: a public authority)')
    .action(async (name: string, options: NewHost, command: Command) => {
      const { client } = openOperatorSession();
      const body = {
        name,
        db_host: options.dbHost,
        direct_port: options.directPort,
        pooled_port: options.pooledPort,
        ...(options.ca !== undefined && { ca_certificate: await readFile(options.ca, 'utf8') }),
      };
      printRecord(command, await dataOf(client.api.POST(HOSTS, { body })));
    });

const drain = () =>
  new Command('drain')
    .description('Give a database host no new projects')
    .argument('<host>', 'name or ID')
    .option('--undo', 'give it new projects again')
    .action(async (reference: string, { undo = false }: { undo?: boolean }, command: Command) => {
      const session = openOperatorSession();
      const { id: host_id } = await findHost(session, reference);
      const init = { params: { path: { host_id } }, body: { draining: !undo } };
      printRecord(command, await dataOf(session.client.api.PATCH(`${HOSTS}/{host_id}`, init)), COLUMNS);
    });

export const hostCommand = (): Command =>
  [list(), enrol(), drain()].reduce(
    (group, command) => group.addCommand(command),
    new Command('host').description('Database hosts, for operators with BRANCHGATE_PLATFORM_SECRET'),
  );
