import { execFile } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { Command } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { isInNetwork } from '../../shared/cidr.ts';
import { CommandError, explain } from '../exit-codes.ts';
import { findLink, pinnedBranch } from '../link.ts';
import { OBSERVED, refusedAddress } from '../observed-address.ts';
import { isJson, printRecord, printRecords } from '../output.ts';
import { findBranch, openSession, optionsOf, profileOf, projectOf, type Session } from '../session.ts';
import { whereTokensAre } from '../stored.ts';
import { credentialsOf } from './connections.ts';

interface Check extends Record<string, unknown> {
  check: string;
  ok: boolean;
  result: string;
}

async function check(name: string, work: () => Promise<string>): Promise<Check> {
  try {
    return { check: name, ok: true, result: await work() };
  } catch (error) {
    return { check: name, ok: false, result: explain(error) };
  }
}

const run = promisify(execFile);

const version = (program: string) => async () => {
  try {
    return (await run(program, ['--version'])).stdout.trim();
  } catch {
    throw new CommandError(
      'failed',
      `${program} is not installed. \`branchgate psql\` and \`import\` need PostgreSQL's client programs.`,
    );
  }
};

/** The major version of PostgreSQL on the hosts (specification 3). */
const SERVER_MAJOR = 18;

const DEBIAN = '/usr/lib/postgresql';
/** From `dist`, or from this folder. */
const OF_CHECKOUT = join(
  dirname(import.meta.filename),
  import.meta.filename.endsWith('doctor.ts') ? '../..' : '..',
  '.dev/postgres-tools/bin',
);

/**
 * Where Debian's packages have the programs of each version, and where a checkout has its own. A folder that happens to
 * be the current one is never searched.
 */
function otherDumps(): string[] {
  const versions = existsSync(DEBIAN) ? readdirSync(DEBIAN) : [];
  const programs = [...versions.map((each) => `${DEBIAN}/${each}/bin`), OF_CHECKOUT];
  return programs.map((folder) => `${folder}/pg_dump`).filter((program) => existsSync(program));
}

const majorOf = (text: string) => Number(/(\d+)/.exec(text)?.[1] ?? 0);

/** pg_dump refuses a server that is newer than itself. That of PATH need not be the newest of the machine. */
const dumpVersion = async () => {
  for (const program of ['pg_dump', ...otherDumps()]) {
    const text = await version(program)().catch(() => '');
    if (majorOf(text) >= SERVER_MAJOR) return program === 'pg_dump' ? text : `${text}, as ${program}`;
  }
  const text = await version('pg_dump')();
  throw new CommandError(
    'failed',
    `${text} cannot dump a branch, which is PostgreSQL ${SERVER_MAJOR}. Install postgresql-client-${SERVER_MAJOR}, for instance from apt.postgresql.org; \`import\` from an older server works.`,
  );
};

/**
 * Compares the address that the database host sees with those that the gateway sees, for which rules are made.
 * @throws CommandError if the host refuses another one
 */
async function addressSeen(command: Command, session: Session): Promise<string> {
  let credentials: Schemas['Credentials'];
  try {
    credentials = await credentialsOf(command, session);
  } catch (error) {
    if (error instanceof ResponseError && error.code === 'FORBIDDEN')
      return 'not tried: this credential may not view connection URLs';
    throw error;
  }
  const { host } = new URL(credentials.direct_url);
  const address = await refusedAddress(credentials);
  if (address === null) return `${host} refuses no address of this machine`;
  if (credentials.missing_networks?.some((network) => isInNetwork(address, network)))
    return `${address}, for which there is no rule yet: \`branchgate psql\` adds one`;
  throw new CommandError(
    'notAllowed',
    `${host} sees this machine as ${address}, the gateway as another one, and no network rule admits it. Run \`branchgate rule add ${OBSERVED}\`.`,
  );
}

async function remoteChecks(command: Command, session: Session): Promise<Check[]> {
  const { client, url } = session;
  return [
    await check('gateway', async () => {
      const { version: release } = await dataOf(client.api.GET('/version'));
      await dataOf(client.api.GET('/readyz'));
      return `${url}, version ${release}`;
    }),
    await check('sign-in', async () => {
      const me = await dataOf(client.api.GET('/api/v1/me'));
      return `${me.email ?? me.actor_type}, ${me.role} of ${me.tenant_id}`;
    }),
    await check('project', () => projectOf(command, session)),
    await check('branch', async () => {
      const branch = await findBranch(session, await projectOf(command, session), pinnedBranch() ?? 'main');
      return `${branch.branch_name}, ${branch.status}`;
    }),
    await check('address', () => addressSeen(command, session)),
  ];
}

/** Checks everything that the other commands rest on, and says what to do. */
export const doctorCommand = () =>
  new Command('doctor')
    .description('Check the gateway, the sign-in, the project and the programs that commands need')
    .action(async (_options, command: Command) => {
      const checks = [
        await check('psql', version('psql')),
        await check('pg_dump', dumpVersion),
        await check('tokens', async () => whereTokensAre(profileOf(optionsOf(command)))),
        await check('link', async () => findLink()?.project ?? 'this folder is not linked'),
      ];
      try {
        checks.push(...(await remoteChecks(command, openSession(command))));
      } catch (error) {
        checks.push({ check: 'gateway', ok: false, result: explain(error) });
      }
      if (isJson(command)) printRecord(command, { checks });
      else printRecords(command, checks, ['check', 'ok', 'result']);
      if (checks.some(({ ok }) => !ok)) throw new CommandError('failed', 'A check failed: see above.');
    });
