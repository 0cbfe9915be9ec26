import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { sleep } from '../../client/sleep.ts';
import { bytes } from '../../shared/format.ts';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { readCount } from '../option-values.ts';
import { isJson, printForPrograms, printRecord, printRecords, printText, say } from '../output.ts';
import { readText } from '../read-text.ts';
import { type OperatorSession, openOperatorSession } from '../session.ts';
import { confirm, withProgress } from '../terminal.ts';

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
  if (registration.replaced)
    say(
      `${registration.name} was registered before. Its former command is void, and its details are those of now.`,
    );
  say(`Run this on the machine, as root, before ${registration.expires_at}:`);
  printText(`${registration.join_command}\n`);
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
    .option('--force', 'with --lost: although the primary is connected')
    .action(async (reference: string, { lost, force }: { lost?: string; force?: true }, command: Command) => {
      if (force && lost === undefined) throw new CommandError('usage', 'Give --force with --lost.');
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
      const body = former ? { lost: former.id, ...(force && { force }) } : {};
      const init = { params: { path: { host_id: host.id } }, body };
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

interface DrainOptions {
  undo?: boolean;
  keepProjects?: boolean;
  status?: boolean;
  onlyProtected?: boolean;
  dropSnapshots?: boolean;
}

const contentOf = ({ onlyProtected = false, dropSnapshots = false }: DrainOptions) => ({
  branches: onlyProtected ? ('protected' as const) : ('all' as const),
  drop_snapshots: dropSnapshots,
});

const withContent = (command: Command) =>
  command
    .option('--only-protected', 'delete the branches that are not protected, instead of moving them')
    .option('--drop-snapshots', 'give up snapshots and deleted branches, which do not move');

const POLL_MS = 1_000;

function printDrain(command: Command, { failed, ...drain }: Schemas['Drain']): void {
  if (isJson(command)) {
    printRecord(command, { ...drain, failed });
    return;
  }
  say(`${projects(drain.remaining)} left on the host.`);
  for (const { project_id, code, message } of failed) say(`${project_id} stays: ${code}. ${message}`);
  for (const { project_id, code, message } of drain.waiting) say(`${project_id} waits: ${code}. ${message}`);
}

/** @throws CommandError for a host that is not drained, also because somebody has ended that */
const readDrain = (
  api: OperatorSession['client']['api'],
  { id, name }: { id: string; name: string },
): Promise<Schemas['Drain']> =>
  dataOf(api.GET(`${HOST}/drain`, { params: { path: { host_id: id } } })).catch((error) => {
    const isAbsent = error instanceof ResponseError && error.code === 'NOT_FOUND';
    throw isAbsent ? new CommandError('notFound', `${name} is not drained.`) : error;
  });

/** Waits until nothing moves any more. */
async function untilDrained(
  { client: { api } }: OperatorSession,
  { id: host_id, name }: { id: string; name: string },
  show: (text: string) => void,
): Promise<Schemas['Drain']> {
  for (;;) {
    const drain = await readDrain(api, { id: host_id, name });
    const [waiting] = drain.waiting;
    show(`${projects(drain.remaining)} left${waiting ? `, waiting: ${waiting.message}` : ''}`);
    if (drain.moving === null && drain.remaining <= drain.failed.length) return drain;
    await sleep(POLL_MS);
  }
}

const drain = () =>
  withContent(
    new Command('drain')
      .description(
        'Move every project of a database host to other hosts of its region, and give it no new ones',
      )
      .argument('<host>', 'name or ID')
      .option('--keep-projects', 'only give it no new projects')
      .option('--status', 'show how far it is')
      .option('--undo', 'end it after the present move, and give the host new projects again'),
  )
    .addHelpText(
      'after',
      `
Projects move one at a time, the largest last. Ctrl-C leaves it running, and --status shows it. Projects that cannot move are
listed with the reason; repeat the command to try them again.`,
    )
    .action(async (reference: string, options: DrainOptions, command: Command) => {
      const session = openOperatorSession();
      const { api } = session.client;
      const { id: host_id, name, project_count: count } = await findHost(session, reference);
      const params = { path: { host_id } };
      const { undo = false, keepProjects = false, status = false } = options;
      if (status) return printDrain(command, await readDrain(api, { id: host_id, name }));
      if (undo || keepProjects) {
        const host = await dataOf(api.PATCH(HOST, { params, body: { draining: !undo } }));
        return printRecord(command, withAgent(host), COLUMNS);
      }
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(
        `Move ${projects(count)} from ${name}? Each is without an answer for about a second, and projects without a name of their own get other connection URLs.`,
        { yes },
      );
      await dataOf(api.POST(`${HOST}/drain`, { params, body: contentOf(options) }));
      const done = await withProgress(`Draining ${name}`, (_, show) =>
        untilDrained(session, { id: host_id, name }, show),
      );
      printDrain(command, done);
      if (done.remaining > 0) throw new CommandError('failed', `${projects(done.remaining)} could not move.`);
    });

interface MoveOptions extends DrainOptions {
  to?: string;
  cancel?: boolean;
}

const PROJECT_MOVE = '/platform/v1/projects/{project_id}/move';

function printMove(command: Command, move: Schemas['Move']): void {
  if (isJson(command)) {
    printRecord(command, move);
    return;
  }
  printRecords(
    command,
    move.branches.map((branch) => ({ ...branch, size: bytes(branch.size_bytes) })),
    ['name', 'size', 'state', 'read_only'],
  );
  say(`State: ${move.state}.`);
}

const move = () =>
  withContent(
    new Command('move')
      .description('Move a project to another database host')
      .argument('<project>', 'ID of the project')
      .option('--to <host>', 'name or ID of the other host')
      .option('--status', 'show the last move')
      .option('--cancel', 'cancel the move that is under way'),
  )
    .addHelpText(
      'after',
      `
main can be written until the last moment, if each of its tables has a key; the other branches can only be read from their copy
on. Ctrl-C leaves the move running.`,
    )
    .action(async (project_id: string, options: MoveOptions, command: Command) => {
      const session = openOperatorSession();
      const { api } = session.client;
      const params = { path: { project_id } };
      const read = () => dataOf(api.GET(PROJECT_MOVE, { params }));
      if (options.status) return printMove(command, await read());
      if (options.cancel) {
        await dataOf(api.DELETE(PROJECT_MOVE, { params }));
        const undone = await untilMoved(read);
        return printMove(command, undone);
      }
      if (options.to === undefined) throw new CommandError('usage', 'Give --to, --status or --cancel.');
      const { id: host_id, name } = await findHost(session, options.to);
      const content = contentOf(options);
      const query = { host_id, branches: content.branches };
      const planned = await dataOf(api.GET(PROJECT_MOVE, { params: { ...params, query } }));
      if (!isJson(command)) {
        say('Each branch arrives as an independent database:');
        printMove(command, planned);
      }
      if (planned.urls_change) say('The connection URLs of the project change. Its passwords stay.');
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(`Move the project to ${name}?`, { yes });
      await dataOf(api.POST(PROJECT_MOVE, { params, body: { host_id, ...content } }));
      const done = await withProgress(`Moving to ${name}`, () => untilMoved(read));
      printMove(command, done);
      if (done.job?.error) throw new CommandError('failed', done.job.error.message);
    });

/** Waits for the end of the job. */
async function untilMoved(read: () => Promise<Schemas['Move']>): Promise<Schemas['Move']> {
  for (;;) {
    const present = await read();
    if (!present.job || ['succeeded', 'failed'].includes(present.job.status)) return present;
    await sleep(POLL_MS);
  }
}

const remove = () =>
  new Command('remove')
    .description('Remove a database host without projects, and free its name')
    .argument('<host>', 'name or ID')
    .option(
      '--switched-off',
      'a former primary has not reported that it is closed, and its machine is off for good',
    )
    .action(async (reference: string, { switchedOff }: { switchedOff?: true }, command: Command) => {
      const session = openOperatorSession();
      const { id, name, enrolled_at } = await findHost(session, reference);
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(`Remove ${name}? Its machine can then join again only as a new host.`, { yes });
      const query = switchedOff ? { switched_off: 'true' as const } : {};
      await dataOf(session.client.api.DELETE(HOST, { params: { path: { host_id: id }, query } }));
      printForPrograms(command, { id, name, removed: true });
      say(`${name} is removed.`);
      if (enrolled_at !== null)
        say('Run `branchgate-agent leave` on its machine: until then its agent keeps trying to connect.');
    });

export const hostCommand = (): Command =>
  [list(), status(), add(), set(), drain(), move(), promote(), remove()].reduce(
    (group, command) => group.addCommand(command),
    new Command('host').description('Database hosts, for operators with BRANCHGATE_PLATFORM_SECRET'),
  );
