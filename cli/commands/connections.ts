import { writeFileSync } from 'node:fs';
import { Command, InvalidArgumentError, Option } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { AUTHORITY_FILE, verifiedUrl } from '../../shared/branch/verified-url.ts';
import { stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment, libpqEnvironment, urlOfChild } from '../connection.ts';
import { CommandError } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { explainRefusal } from '../observed-address.ts';
import { otherAddress } from '../other-address.ts';
import { isJson, printRecord, printText, say } from '../output.ts';
import { letConnect } from '../own-address.ts';
import { runChild } from '../run-child.ts';
import { branchPath, openSession, type Session } from '../session.ts';

type Credentials = Schemas['Credentials'];

const ROLES = ['read_only', 'owner'] as const;
export type Role = (typeof ROLES)[number];

export const roleOption = () =>
  new Option('--role <role>', 'login of both URLs (default: pooled read-write, direct owner)').choices(ROLES);

const CREDENTIALS = '/api/v1/projects/{project_id}/branches/{branch_ref}/credentials';

export async function credentialsOf(command: Command, session: Session, branch?: string, role?: Role) {
  const [path, other] = await Promise.all([branchPath(command, session, branch), otherAddress(session.url)]);
  const query = { ...(role && { role }), ...(other !== null && { other_address: other }) };
  return dataOf(session.client.api.GET(CREDENTIALS, { params: { path, query } }));
}

interface Named {
  key: string;
  /** The file with the authority; null: a public one. */
  authority: string | null;
  gateway: string;
}

/** The variables by which libpq and Node find the authority. */
export const variablesOf = (url: string, { key, authority }: Omit<Named, 'gateway'>): [string, string][] => [
  [key, url],
  ...(authority === null
    ? []
    : [
        ['PGSSLROOTCERT', authority] as [string, string],
        ['NODE_EXTRA_CA_CERTS', authority] as [string, string],
      ]),
];

/** The lines of a connection, by format. */
const FORMATS: Record<string, (url: string, named: Named) => string[]> = {
  uri: (url) => [url],
  dotenv: (url, named) => variablesOf(url, named).map(([name, value]) => `${name}="${value}"`),
  env: (url, named) => variablesOf(url, named).map(([name, value]) => `export ${name}='${value}'`),
  jdbc: (url) => [jdbcUrl(url)],
  serverless: (url, { gateway }) => [
    `import { neon, neonConfig } from '@neondatabase/serverless';`,
    `neonConfig.fetchEndpoint = '${gateway}/sql';`,
    `export const sql = neon('${url}');`,
    '// Pool and Client, for interactive transactions, open a WebSocket to the database host.',
    `neonConfig.wsProxy = (host, port) => \`\${host}/v2?address=\${host}:\${port}\`;`,
    '// Over HTTP:     drizzle({ client: sql }) of drizzle-orm/neon-http',
    '// WebSocket:     drizzle({ client: pool }) of drizzle-orm/neon-serverless',
    '//               new PrismaNeon({ connectionString }) of @prisma/adapter-neon',
    `// No library:    POST ${gateway}/sql with Neon-Connection-String and {"query", "params"}`,
  ],
};

/** A file name is a part of a URL and of a line that a shell reads. */
const SAFE_FILE = /^[\w./@+-]+$/;

function readAuthorityFile(text: string): string {
  if (SAFE_FILE.test(text)) return text;
  throw new InvalidArgumentError('Give a path of letters, digits and ./@+_- only.');
}

/**
 * Writes the authority of a host that has one of its own, without which drivers refuse the URL.
 * @returns where it is; null for a public one
 * @throws CommandError
 */
function writeAuthority({ ca_certificate: certificate }: Credentials, file: string): string | null {
  if (certificate === null) return null;
  try {
    writeFileSync(file, certificate);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new CommandError('usage', `${file} cannot be written (${code}). Name another file with --ca.`);
  }
  say(`The authority of the host is in ${file}, which the URL names.`);
  return file;
}

function jdbcUrl(given: string): string {
  const { host, pathname, username, password, searchParams } = new URL(given);
  const parameters = new URLSearchParams({
    user: decodeURIComponent(username),
    password: decodeURIComponent(password),
    sslmode: searchParams.get('sslmode') ?? 'require',
    ...(searchParams.has('sslrootcert') && { sslrootcert: searchParams.get('sslrootcert') ?? '' }),
  });
  return `jdbc:postgresql://${host}${pathname}?${parameters}`;
}

interface ConnectionOptions {
  direct?: boolean;
  role?: Role;
  format: string;
  ca: string;
}

const connectionString = () =>
  new Command('connection-string')
    .description('Print the connection URL of a branch, with its password')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .option('--direct', 'the direct URL (default: through the pooler)')
    .addOption(roleOption())
    .addOption(
      new Option('--format <format>', 'form of the output')
        .choices([...Object.keys(FORMATS), 'json'])
        .default('uri'),
    )
    .option(
      '--ca <file>',
      'where the certificate of the authority is written, unless that is a public one',
      readAuthorityFile,
      AUTHORITY_FILE,
    )
    .addHelpText(
      'after',
      `
The URL is that of the Connect page of the console. It verifies the server, and names the file of --ca, which clients
look for in their own folder unless it is an absolute path.`,
    )
    .action(async (branch: string | undefined, options: ConnectionOptions, command: Command) => {
      const session = openSession(command);
      const credentials = await credentialsOf(command, session, branch, options.role);
      if (options.format === 'json' && !isJson(command)) command.setOptionValue('json', true);
      if (isJson(command)) return printRecord(command, credentials);
      // Over HTTP the certificate is that of the gateway, and the address that of a function.
      const isOverHttp = options.format === 'serverless';
      if (credentials.missing_networks && !isOverHttp)
        say(
          `No network rule lets ${credentials.missing_networks.join(' and ')} connect, from where this machine does. Run \`branchgate rule add me\`.`,
        );
      const authority = isOverHttp ? null : writeAuthority(credentials, options.ca);
      const given = options.direct ? credentials.direct_url : credentials.database_url;
      const url = isOverHttp ? given : verifiedUrl(given, authority);
      const key = options.direct ? 'DIRECT_URL' : 'DATABASE_URL';
      const lines = FORMATS[options.format]?.(url, { key, authority, gateway: session.url }) ?? [];
      printText(lines.map((line) => `${line}\n`).join(''));
    });

/** Exit code of psql without a connection. */
const NOT_CONNECTED = 2;

const psql = () =>
  new Command('psql')
    .description('Open psql on a branch, as its owner and directly')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .argument('[args...]', 'arguments of psql, after --')
    .addOption(roleOption())
    .option('--pooled', 'through the pooler, as the read-write login')
    .action(
      async (
        given: string | undefined,
        given2: string[],
        options: { role?: Role; pooled?: boolean },
        command: Command,
      ) => {
        const { branch, args } = splitArguments(command, given, given2);
        const session = openSession(command);
        const credentials = await credentialsOf(command, session, branch, options.role);
        const signal = stopSignal();
        const files = new ConnectionFiles();
        try {
          const removeRule = await letConnect(session, credentials);
          try {
            signal.throwIfAborted();
            const url = urlOfChild(
              options.pooled ? credentials.database_url : credentials.direct_url,
              credentials,
            );
            const env = { ...childEnvironment(credentials, files), ...libpqEnvironment(url) };
            const code = await runChild('psql', args, env);
            if (code === NOT_CONNECTED) await explainRefusal(credentials);
            exitWith(code);
          } finally {
            await removeRule();
          }
        } finally {
          files.remove();
        }
      },
    );

/** Commander does not tell `psql -- -c x` from `psql branch`, so the position of `--` decides. */
function splitArguments(command: Command, first: string | undefined, rest: string[]) {
  const root = command.parent as Command & { rawArgs: string[] };
  const separator = root.rawArgs.indexOf('--');
  const afterSeparator = separator < 0 ? 0 : root.rawArgs.length - separator - 1;
  const all = first === undefined ? rest : [first, ...rest];
  const before = all.slice(0, all.length - afterSeparator);
  const args = all.slice(all.length - afterSeparator);
  if (before.length > 1) command.error('Give arguments of psql after --.');
  return { branch: before[0], args };
}

export const connectionCommands = (): Command[] => [connectionString(), psql()];
