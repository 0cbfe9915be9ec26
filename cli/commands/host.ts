import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { readCount } from '../option-values.ts';
import { isJson, printForPrograms, printRecord, printRecords, say } from '../output.ts';
import { readText } from '../read-text.ts';
import { type OperatorSession, openOperatorSession } from '../session.ts';
import { confirm } from '../terminal.ts';

const HOSTS = '/platform/v1/hosts';
const HOST = `${HOSTS}/{host_id}` as const;
const COLUMNS = [
  'name',
  'role',
  'db_host',
  'direct_port',
  'pooled_port',
  'linked',
  'agent',
  'draining',
  'region',
  'project_count',
  'capacity',
  'free_bytes',
  'id',
];

async function findHost({ client }: OperatorSession, reference: string): Promise<Schemas['Host']> {
  for await (const host of client.all(HOSTS))
    if (host.id === reference || host.name === reference) return host;
  throw new CommandError('notFound', `There is no host named ${reference}. Run \`branchgate host list\`.`);
}

/** Prints the command for the machine, which is all that a person needs. */
function printRegistration(command: Command, registration: Schemas['HostRegistration']): void {
  if (isJson(command)) {
    printRecord(command, registration);
    return;
  }
  say(`Run this on the machine, as root, before ${registration.expires_at}:`);
  process.stdout.write(`${registration.join_command}\n`);
}

/** The version of its agent, and that of the gateway if it is newer. */
function agentOf({ description, available_version: available }: Schemas['Host']): string | null {
  if (!description) return null;
  const { agent_version: version } = description;
  return available === null ? version : `${version}, ${available} is available`;
}

const memberOf = ({ members, id }: Schemas['Host']) => members.find(({ host_id }) => host_id === id);

/** What the host is to its standby, or to its primary. Most hosts are alone. */
function roleOf(host: Schemas['Host']): string {
  const { role = 'primary' } = memberOf(host) ?? {};
  return role === 'primary' && host.members.length === 1 ? 'alone' : role;
}

const withAgent = (host: Schemas['Host']) => ({ ...host, role: roleOf(host), agent: agentOf(host) });

const list = () =>
  new Command('list').description('List database hosts').action(async (_options, command: Command) => {
    const { client } = openOperatorSession();
    printRecords(command, (await take(client.all(HOSTS))).map(withAgent), COLUMNS);
  });

const MEMBER_COLUMNS = ['name', 'role', 'lag_bytes', 'lag_seconds', 'linked', 'db_host', 'id'];

const status = () =>
  new Command('status')
    .description('Show a database host, its standby and how far that is behind')
    .argument('<host>', 'name or ID')
    .action(async (reference: string, _options, command: Command) => {
      const session = openOperatorSession();
      const host = await findHost(session, reference);
      const hosts = await take(session.client.all(HOSTS));
      const members = host.members.map((member) => ({
        ...hosts.find(({ id }) => id === member.host_id),
        ...member,
      }));
      if (isJson(command)) printRecord(command, withAgent(host));
      else printRecords(command, members, MEMBER_COLUMNS);
    });

interface HostOptions {
  address?: string;
  directPort?: number;
  pooledPort?: number;
  ca?: string;
  region?: string;
  capacity?: number | null;
}

const withServers = (command: Command) =>
  command
    .option('--direct-port <port>', 'port of PostgreSQL', readCount)
    .option('--pooled-port <port>', 'port of PgBouncer', readCount)
    .option('--ca <file>', 'certificate of its authority in PEM format; `none`: a public authority')
    .option('--region <region>', 'its region, which new projects can name; `none`: in no region')
    .option('--capacity <projects>', 'the most projects that it gets; `none`: no limit', (text) =>
      text === 'none' ? null : readCount(text),
    );

/** @throws CommandError for a file that cannot be read */
const readAuthority = async (path: string): Promise<string | null> =>
  path === 'none' ? null : readText(path, `--ca ${path}`);

const bodyOf = async ({ address, directPort, pooledPort, ca, region, capacity }: HostOptions) => ({
  ...(address !== undefined && { db_host: address }),
  ...(directPort !== undefined && { direct_port: directPort }),
  ...(pooledPort !== undefined && { pooled_port: pooledPort }),
  ...(ca !== undefined && { ca_certificate: await readAuthority(ca) }),
  ...(region !== undefined && { region: region === 'none' ? null : region }),
  ...(capacity !== undefined && { capacity }),
});

const add = () =>
  withServers(
    new Command('add')
      .description('Register a database host; prints the command that joins its machine, once')
      .argument('<name>')
      .requiredOption('--address <name>', 'its public name or address in connection URLs'),
  )
    .option('--standby-of <host>', 'name or ID of the host whose place it can take')
    .action(
      async (
        name: string,
        { standbyOf, ...options }: HostOptions & { address: string; standbyOf?: string },
        command: Command,
      ) => {
        const session = openOperatorSession();
        const body = {
          name,
          db_host: options.address,
          ...(await bodyOf(options)),
          ...(standbyOf !== undefined && { standby_of: (await findHost(session, standbyOf)).id }),
        };
        printRegistration(command, await dataOf(session.client.api.POST(HOSTS, { body })));
      },
    );

const promote = () =>
  new Command('promote')
    .description('Make a standby the primary: it gets all projects of its primary, which is closed for good')
    .argument('<host>', 'name or ID of the standby')
    .option('--lost <host>', 'its primary, if that machine is lost; otherwise the primary is closed first')
    .action(async (reference: string, { lost }: { lost?: string }, command: Command) => {
      const session = openOperatorSession();
      const host = await findHost(session, reference);
      const former = lost === undefined ? undefined : await findHost(session, lost);
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(
        former
          ? `Promote ${host.name}? What ${former.name} has confirmed and not sent is lost, and if ${former.name} still runs, it has to be switched off first.`
          : `Promote ${host.name}? Clients are disconnected for some seconds.`,
        { yes },
      );
      const init = { params: { path: { host_id: host.id } }, body: former ? { lost: former.id } : {} };
      const promoted = await dataOf(session.client.api.POST(`${HOST}/promote`, init));
      printRecord(command, { ...withAgent(promoted.host), survived_until: promoted.survived_until }, [
        ...['name', 'role', 'db_host', 'project_count'],
        ...(former ? ['survived_until'] : []),
      ]);
      say(
        `${host.name} serves. To make its former primary the standby, run \`branchgate-agent rejoin\` there.`,
      );
    });

const set = () =>
  withServers(
    new Command('set')
      .description('Change what clients use to connect to a database host, or which projects it gets')
      .argument('<host>', 'name or ID')
      .option('--address <name>', 'its new public name or address in connection URLs'),
  )
    .option('--new-machine', 'print the command that joins another machine as this host')
    .action(
      async (
        reference: string,
        { newMachine = false, ...options }: HostOptions & { newMachine?: boolean },
        command: Command,
      ) => {
        const body = await bodyOf(options);
        const isChange = Object.keys(body).length > 0;
        if (isChange === newMachine)
          throw new CommandError(
            'usage',
            'Give --address, --direct-port, --pooled-port, --ca, --region or --capacity, or --new-machine alone.',
          );
        const session = openOperatorSession();
        const { id: host_id, project_count: count } = await findHost(session, reference);
        const { api } = session.client;
        const params = { path: { host_id } };
        if (newMachine) {
          printRegistration(command, await dataOf(api.POST(`${HOST}/enrolment`, { params })));
          return;
        }
        printRecord(command, withAgent(await dataOf(api.PATCH(HOST, { params, body }))), COLUMNS);
        if (options.address !== undefined && count > 0)
          say(
            `Credentials have the new address from now on. Keep the old one working until the clients of its ${projects(count)} use the new one.`,
          );
      },
    );

const projects = (count: number) => (count === 1 ? '1 project' : `${count} projects`);

const drain = () =>
  new Command('drain')
    .description('Give a database host no new projects')
    .argument('<host>', 'name or ID')
    .option('--undo', 'give it new projects again')
    .action(async (reference: string, { undo = false }: { undo?: boolean }, command: Command) => {
      const session = openOperatorSession();
      const { id: host_id } = await findHost(session, reference);
      const init = { params: { path: { host_id } }, body: { draining: !undo } };
      const host = await dataOf(session.client.api.PATCH(HOST, init));
      printRecord(command, withAgent(host), COLUMNS);
      if (!undo && host.project_count > 0)
        say(
          `Its ${projects(host.project_count)} stay and work as before: branchgate cannot move a project to another host yet.`,
        );
    });

const remove = () =>
  new Command('remove')
    .description('Remove a database host without projects, and free its name')
    .argument('<host>', 'name or ID')
    .action(async (reference: string, _options, command: Command) => {
      const session = openOperatorSession();
      const { id, name, enrolled_at } = await findHost(session, reference);
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(`Remove ${name}? Its machine can then join again only as a new host.`, { yes });
      await dataOf(session.client.api.DELETE(HOST, { params: { path: { host_id: id } } }));
      printForPrograms(command, { id, name, removed: true });
      say(`${name} is removed.`);
      if (enrolled_at !== null)
        say('Run `branchgate-agent leave` on its machine: until then its agent keeps trying to connect.');
    });

export const hostCommand = (): Command =>
  [list(), status(), add(), set(), drain(), promote(), remove()].reduce(
    (group, command) => group.addCommand(command),
    new Command('host').description('Database hosts, for operators with BRANCHGATE_PLATFORM_SECRET'),
  );
