import { Argument, Command, InvalidArgumentError, Option } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { isInNetwork, isPlainAddress } from '../../shared/cidr.ts';
import { isNetworkName } from '../../shared/named-networks.ts';
import { RULE_VIAS, type RuleVia } from '../../shared/rule-via.ts';
import { take } from '../../shared/take.ts';
import { impossibleClaim, TRUSTED_SERVICES, type TrustedService } from '../../shared/trusted-services.ts';
import { CommandError } from '../exit-codes.ts';
import { OBSERVED, refusedAddress } from '../observed-address.ts';
import { collect, collectOneOf, readCount, readDuration } from '../option-values.ts';
import { ME, otherAddress } from '../other-address.ts';
import { printForPrograms, printRecord, printRecords, say } from '../output.ts';
import { rulesOf } from '../own-address.ts';
import {
  branchPath,
  findBranch,
  namedProject,
  openSession,
  optionsOf,
  projectOf,
  type Session,
} from '../session.ts';
import { credentialsOf } from './connections.ts';

const RULE_COLUMNS = ['cidr', 'via', 'branch_id', 'status', 'source', 'description', 'expires_at', 'id'];
const RULES = '/api/v1/projects/{project_id}/network-rules';

/** The end of a rule that has none. */
const FOREVER = 'forever';

/** Options of `rule extend`. */
interface RuleExtension {
  ttl?: number | typeof FOREVER;
  via?: RuleVia;
}

/** Options of `rule test`. */
interface RuleTest {
  via: RuleVia;
}

const viaOption = (description: string) => new Option('--via <way>', description).choices(RULE_VIAS);

interface NewRule {
  branch?: string;
  description?: string;
  ttl?: number;
  via?: RuleVia;
}

/** Connections to a database may come from the address that requests to the gateway do not come from. */
async function addOtherAddress(
  { client, url }: Session,
  project_id: string,
  body: { branch_id?: string; description?: string; ttl_seconds?: number; via?: RuleVia },
): Promise<void> {
  const cidr = await otherAddress(url);
  if (cidr === null) return;
  const init = { params: { path: { project_id } }, body: { ...body, cidr } };
  try {
    const rule = await dataOf(client.api.POST(RULES, init));
    say(`${rule.cidr}, the other address of this machine, may connect too (rule ${rule.id}).`);
  } catch (error) {
    if (!(error instanceof ResponseError && error.code === 'RULE_EXISTS')) throw error;
  }
}

/** @throws CommandError if there is nothing to add: a rule admits the address, or the host does not answer */
async function addressForRule(command: Command, session: Session, branch?: string): Promise<string> {
  const credentials = await credentialsOf(command, session, branch);
  const address = await refusedAddress(credentials);
  if (address !== null) return address;
  const { host } = new URL(credentials.direct_url);
  throw new CommandError(
    'failed',
    `${host} refuses no address of this machine: either a rule admits it, or nothing answers there. \`branchgate psql\` shows which.`,
  );
}

/** Warns if another member has a rule for the same address: a network then gives it to several machines. */
async function warnIfShared({ client }: Session, added: Schemas['NetworkRule']): Promise<void> {
  const init = { params: { path: { project_id: added.project_id } } };
  const rules = await take(client.all(RULES, init));
  const other = rules.find(({ cidr, created_by }) => cidr === added.cidr && created_by !== added.created_by);
  if (other)
    say(
      `The rule ${other.id} of another member is for ${added.cidr} too. If that is another machine, a network gives both this address, and everybody behind it may connect: name a narrower network, or let the balancer keep the client's address.`,
    );
}

/** The ranges of the networks that rules name, by the name. */
async function namedNetworks(
  { client }: Session,
  rules: readonly Schemas['NetworkRule'][],
): Promise<ReadonlyMap<string, readonly string[]>> {
  if (rules.every(({ network }) => network === null)) return new Map();
  const { named_networks: lists } = await dataOf(client.api.GET('/api/v1/named-networks'));
  return new Map(lists.map(({ network, cidrs }) => [network, cidrs]));
}

function ruleCommand(): Command {
  const group = new Command('rule').description('Network rules: who may connect to the databases');

  group
    .command('list')
    .description('List network rules')
    .option('--branch <branch>', 'only rules of this branch')
    .action(async ({ branch }: { branch?: string }, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const found = branch === undefined ? null : await findBranch(session, project_id, branch);
      const query = found ? { branch_id: found.id } : {};
      const init = { params: { path: { project_id }, query } };
      printRecords(command, await take(session.client.all(RULES, init)), RULE_COLUMNS);
    });

  group
    .command('add')
    .description('Create a network rule')
    .argument(
      '<network>',
      'an address, a network, `me` (this machine, with its addresses of both families as the gateway sees it), `observed` (this machine as the database host sees it), or a name: `cloudflare`, `github-actions`',
    )
    .option('--branch <branch>', 'only to this branch (default: to all of the project)')
    .option('--description <text>', 'what the network is')
    .option('--ttl <duration>', 'time until the rule is removed, for instance 1h', readDuration)
    .addOption(viaOption('what the rule opens: `sql` is SQL over HTTP without the ports').default('all'))
    .action(async (network: string, options: NewRule, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const branch =
        options.branch === undefined ? null : await findBranch(session, project_id, options.branch);
      const about = {
        ...(branch && { branch_id: branch.id }),
        ...(options.description !== undefined && { description: options.description }),
        ...(options.ttl !== undefined && { ttl_seconds: options.ttl }),
        ...(options.via && { via: options.via }),
      };
      if (network === ME) await addOtherAddress(session, project_id, about);
      const cidr =
        network === OBSERVED ? await addressForRule(command, session, branch?.branch_name) : network;
      const body = { ...about, ...(isNetworkName(network) ? { network } : { cidr }) };
      const init = { params: { path: { project_id } }, body };
      const rule = await dataOf(session.client.api.POST(RULES, init));
      printRecord(command, rule, RULE_COLUMNS);
      if (network === OBSERVED) await warnIfShared(session, rule);
    });

  group
    .command('extend')
    .description('Move the end of a network rule, or change what it opens')
    .argument('<id>')
    .option('--ttl <duration>', 'time from now until the rule is removed, or `forever`', (text) =>
      text === FOREVER ? FOREVER : readDuration(text),
    )
    .addOption(viaOption('what the rule opens from now on'))
    .action(async (rule_id: string, { ttl, via }: RuleExtension, command: Command) => {
      if (ttl === undefined && via === undefined) throw new CommandError('usage', 'Provide --ttl or --via.');
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session), rule_id };
      const body = {
        ...(ttl !== undefined && { ttl_seconds: ttl === FOREVER ? null : ttl }),
        ...(via && { via }),
      };
      const init = { params: { path }, body };
      printRecord(command, await dataOf(session.client.api.PATCH(`${RULES}/{rule_id}`, init)), RULE_COLUMNS);
    });

  group
    .command('remove')
    .description('Remove a network rule')
    .argument('<id>')
    .action(async (rule_id: string, _options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session), rule_id };
      const params = { path };
      await dataOf(
        session.client.api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', { params }),
      );
      printForPrograms(command, { id: rule_id });
    });

  group
    .command('test')
    .description('Show whether an address may connect to a branch; exit code 5 if it may not')
    .argument('<address>')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .addOption(viaOption('`sql`: by SQL over HTTP').default('all'))
    .action(async (address: string, given: string | undefined, options: RuleTest, command: Command) => {
      if (!isPlainAddress(address))
        throw new CommandError('usage', `${address} is not an IPv4 or IPv6 address.`);
      const session = openSession(command);
      const { project_id, branch_ref } = await branchPath(command, session, given);
      const branch = await findBranch(session, project_id, branch_ref);
      const isSql = options.via === 'sql';
      const rules = await rulesOf(session, project_id, branch.id);
      const lists = await namedNetworks(session, rules);
      const matching = rules.filter(
        ({ cidr, via }) =>
          (isSql || via === 'all') &&
          (lists.get(cidr) ?? [cidr]).some((network) => isInNetwork(address, network)),
      );
      printRecords(command, matching, RULE_COLUMNS);
      if (matching.length === 0)
        throw new CommandError(
          'notAllowed',
          `No network rule lets ${address} connect to ${branch.branch_name}${isSql ? ' by SQL over HTTP' : ''}.`,
        );
      const closed = branch.closed_to.find(
        ({ network }) => network === null || isInNetwork(address, network),
      );
      if (closed)
        throw new CommandError(
          'notAllowed',
          `${closed.message} For example: branchgate branch update ${branch.branch_name} --connection-attempts max`,
        );
    });
  return group;
}

const BRANCH_ROLES = ['owner', 'read_write', 'read_only'] as const;

function credentialsCommand(): Command {
  const group = new Command('credentials').description('Passwords of a branch');
  group
    .command('rotate')
    .description('Replace passwords; `connection-string` prints the new ones')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .addOption(
      new Option('--role <role>', 'only this login; can be repeated')
        .choices(BRANCH_ROLES)
        .argParser(collectOneOf(BRANCH_ROLES)),
    )
    .action(
      async (
        given: string | undefined,
        options: { role?: (typeof BRANCH_ROLES)[number][] },
        command: Command,
      ) => {
        const session = openSession(command);
        const path = await branchPath(command, session, given);
        const body = options.role ? { roles: options.role } : {};
        const { project_id, branch_id, branch_name } = await dataOf(
          session.client.api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate', {
            params: { path },
            body,
          }),
        );
        printRecord(command, { project_id, branch_id, branch_name });
      },
    );
  return group;
}

const KEY_COLUMNS = [
  'name',
  'role',
  'scopes',
  'project_id',
  'branch_pattern',
  'expires_at',
  'last_used_at',
  'id',
];
const ROLES = ['owner', 'admin', 'operator', 'viewer'] as const;

interface NewKey {
  role: (typeof ROLES)[number];
  readOnly?: boolean;
  branchPattern?: string;
  cidr?: string[];
  days: number;
  allProjects?: boolean;
}

const lostKey = (id: string) =>
  `The response with the new key was lost, and it cannot be shown again. Run \`branchgate key revoke ${id}\`, then create another one.`;

function keyCommand(): Command {
  const group = new Command('key').description('API keys');
  group
    .command('list')
    .description('List API keys')
    .action(async (_options, command: Command) => {
      const { client } = openSession(command);
      printRecords(command, await take(client.all('/api/v1/api-keys')), KEY_COLUMNS);
    });
  group
    .command('create')
    .description('Create an API key, which is printed once')
    .argument('<name>')
    .addOption(new Option('--role <role>', 'at most your own').choices(ROLES).default('operator'))
    .option('--read-only', 'only the scope for reading')
    .option('--branch-pattern <pattern>', 'only branches with such names, for instance pr-*')
    .option('--cidr <network>', 'a network that may use the key; can be repeated', collect)
    .option('--days <n>', 'days until it expires', readCount, 90)
    .option('--all-projects', 'for every project (default: only the one of --project or of the link)')
    .action(async (name: string, options: NewKey, command: Command) => {
      if (options.allProjects && optionsOf(command).project !== undefined)
        throw new CommandError('usage', '--all-projects and --project exclude each other.');
      const session = openSession(command);
      const isOfAll = options.allProjects || namedProject(command) === undefined;
      const project_id = isOfAll ? null : await projectOf(command, session);
      const body = {
        name,
        role: options.role,
        scopes: options.readOnly ? ['read'] : ['read', 'write'],
        expires_in_days: options.days,
        ...(project_id !== null && { project_id }),
        ...(options.branchPattern !== undefined && { branch_pattern: options.branchPattern }),
        ...(options.cidr && { cidrs: options.cidr }),
      };
      const made = await dataOf(session.client.api.POST('/api/v1/api-keys', { body }));
      if (made.key === null) throw new CommandError('failed', lostKey(made.id));
      say(
        project_id === null
          ? 'The key is for all projects. Limit one with --project.'
          : `The key is for the project ${project_id} only. --all-projects creates one for all.`,
      );
      printRecord(command, made);
    });
  group
    .command('revoke')
    .description('Delete an API key')
    .argument('<id>')
    .action(async (key_id: string, _options, command: Command) => {
      const { client } = openSession(command);
      await dataOf(client.api.DELETE('/api/v1/api-keys/{key_id}', { params: { path: { key_id } } }));
      printForPrograms(command, { id: key_id });
    });
  return group;
}

const GRANT_COLUMNS = [
  'client_name',
  'redirect_host',
  'role',
  'scopes',
  'project_id',
  'branch_pattern',
  'expires_at',
  'last_used_at',
  'id',
];

function grantCommand(): Command {
  const group = new Command('grant').description('Agents that people signed in by their browser');
  group
    .command('list')
    .description('List the agents that you signed in; for owners and admins, those of everybody')
    .action(async (_options, command: Command) => {
      const { client } = openSession(command);
      printRecords(command, await take(client.all('/api/v1/oauth-grants')), GRANT_COLUMNS);
    });
  group
    .command('revoke')
    .description('Sign an agent out')
    .argument('<id>')
    .action(async (grant_id: string, _options, command: Command) => {
      const { client } = openSession(command);
      await dataOf(client.api.DELETE('/api/v1/oauth-grants/{grant_id}', { params: { path: { grant_id } } }));
      printForPrograms(command, { id: grant_id });
    });
  return group;
}

const TRUSTS = '/api/v1/projects/{project_id}/trusts';
const TRUST_COLUMNS = ['issuer', 'audience', 'claims', 'role', 'branch_pattern', 'last_used_at', 'id'];

/** Services with a command of their own. */
const SERVICES = {
  github: { description: 'Trust the workflows of a GitHub repository', ref: 'refs/heads/main' },
  gitlab: { description: 'Trust the jobs of a GitLab project', ref: 'main' },
} as const;

/** The name of a repository, or with a trailing `*` the beginning of several. */
const repositoryOf =
  ({ issuer, claim, argument }: TrustedService) =>
  (text: string): string => {
    if (impossibleClaim(issuer, { [claim]: text })) throw new InvalidArgumentError(`Give it as ${argument}.`);
    return text;
  };

interface NewTrust {
  ref?: string;
  role: (typeof ROLES)[number];
  branchPattern?: string;
}

function trustCommand(): Command {
  const group = new Command('trust').description('Workloads that sign in without a stored secret');
  for (const name of ['github', 'gitlab'] as const) {
    const { description, ref } = SERVICES[name];
    const service = TRUSTED_SERVICES[name];
    const { issuer, claim } = service;
    group
      .command(name)
      .description(description)
      .addArgument(new Argument(`<${service.argument}>`).argParser(repositoryOf(service)))
      .option('--ref <ref>', `only this ref, for instance ${ref}`)
      .addOption(new Option('--role <role>', 'role of the jobs').choices(ROLES).default('operator'))
      .option('--branch-pattern <pattern>', 'only branches with such names, for instance pr-*')
      .action(async (repository: string, options: NewTrust, command: Command) => {
        const session = openSession(command);
        const path = { project_id: await projectOf(command, session) };
        const body = {
          issuer,
          audience: session.url,
          claims: { [claim]: repository, ...(options.ref !== undefined && { ref: options.ref }) },
          role: options.role,
          ...(options.branchPattern !== undefined && { branch_pattern: options.branchPattern }),
        };
        printRecord(
          command,
          await dataOf(session.client.api.POST(TRUSTS, { params: { path }, body })),
          TRUST_COLUMNS,
        );
      });
  }
  group
    .command('list')
    .description('List trusts')
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      printRecords(command, await take(session.client.all(TRUSTS, { params: { path } })), TRUST_COLUMNS);
    });
  group
    .command('remove')
    .description('Remove a trust')
    .argument('<id>')
    .action(async (trust_id: string, _options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session), trust_id };
      const params = { path };
      await dataOf(session.client.api.DELETE('/api/v1/projects/{project_id}/trusts/{trust_id}', { params }));
      printForPrograms(command, { id: trust_id });
    });
  return group;
}

export const accessCommands = (): Command[] => [
  ruleCommand(),
  credentialsCommand(),
  keyCommand(),
  grantCommand(),
  trustCommand(),
];
