import type { Command } from 'commander';
import { type BranchgateClient, createClient, type Schemas } from '../client/client.ts';
import { findBranch as branchIn } from '../client/find-branch.ts';
import { safeAddress } from '../client/gateway-address.ts';
import type { TokenSource } from '../client/send.ts';
import { take } from '../shared/take.ts';
import { CommandError } from './exit-codes.ts';
import { findLink, pinnedBranch } from './link.ts';
import { say } from './output.ts';
import { readProfiles, readTokens, storeTokens } from './stored.ts';

/** Options that every command has. */
export interface GlobalOptions {
  profile?: string;
  project?: string;
  yes?: boolean;
}

export interface Session {
  url: string;
  profile: string;
  client: BranchgateClient;
}

/** @throws CommandError */
export function gatewayAddress(text: string): string {
  const address = safeAddress(text);
  if (address === null)
    throw new CommandError(
      'usage',
      `${text} is not the address of a gateway. Give an address that begins with https://.`,
    );
  return address;
}

export const profileOf = ({ profile }: GlobalOptions): string => profile ?? readProfiles().current;

/** The token in the environment; it has no profile. */
const environmentToken = () => process.env.BRANCHGATE_API_KEY || process.env.BRANCHGATE_TOKEN || null;

/**
 * The address of the gateway. A token in the environment belongs to an address in the environment: a file in
 * a repository must not decide where it is sent.
 */
function addressOf(options: GlobalOptions): string {
  const { BRANCHGATE_URL } = process.env;
  if (BRANCHGATE_URL) return gatewayAddress(BRANCHGATE_URL);
  if (environmentToken())
    throw new CommandError(
      'usage',
      'BRANCHGATE_URL is missing. Set it next to the token in the environment.',
    );
  const link = options.profile === undefined ? findLink() : null;
  const url = link?.url ?? readProfiles().profiles[profileOf(options)]?.url;
  if (!url) throw new CommandError('notSignedIn', 'No gateway is known. Run `branchgate login <url>`.');
  return gatewayAddress(url);
}

const NOT_SIGNED_IN = 'You are not signed in. Run `branchgate login`, or set BRANCHGATE_API_KEY.';

/** The stored tokens for this address, whatever profile they are in. */
function signedIn(url: string, options: GlobalOptions) {
  const { profiles } = readProfiles();
  const preferred = profileOf(options);
  const names = options.profile === undefined ? [preferred, ...Object.keys(profiles)] : [preferred];
  const profile = names.find((name) => readTokens(name)?.url === url);
  const tokens = profile === undefined ? null : readTokens(profile);
  if (profile === undefined || !tokens) throw new CommandError('notSignedIn', NOT_SIGNED_IN);
  return { profile, tokens };
}

/** Renews the stored tokens when the gateway has rejected the access token. */
const storedToken =
  (url: string, options: GlobalOptions): TokenSource =>
  async (rejected) => {
    const { profile, tokens } = signedIn(url, options);
    // Another process may have renewed them meanwhile.
    if (tokens.access_token !== rejected) return tokens.access_token;
    if (tokens.refresh_token === null) return null;
    const { api } = createClient({ url });
    const { data, response } = await api.POST('/api/v1/auth/refresh', {
      body: { refresh_token: tokens.refresh_token },
    });
    if (response.status === 401) throw new CommandError('notSignedIn', NOT_SIGNED_IN);
    if (!data) return null;
    storeTokens(profile, { url, access_token: data.access_token, refresh_token: data.refresh_token });
    return data.access_token;
  };

export const optionsOf = (command: Command): GlobalOptions => command.optsWithGlobals<GlobalOptions>();

/** @throws CommandError when no gateway is known */
export function openSession(command: Command): Session {
  const options = optionsOf(command);
  const url = addressOf(options);
  const token = environmentToken() ?? storedToken(url, options);
  return { url, profile: profileOf(options), client: createClient({ url, token }) };
}

export type OperatorSession = Pick<Session, 'client'>;

/**
 * For the operator of the platform. Its secret is in no file, and belongs to an address in the environment.
 */
export function openOperatorSession(): OperatorSession {
  const { BRANCHGATE_URL, BRANCHGATE_PLATFORM_SECRET: token } = process.env;
  if (!BRANCHGATE_URL || !token)
    throw new CommandError(
      'notSignedIn',
      'Commands about hosts are for operators. Set BRANCHGATE_URL and BRANCHGATE_PLATFORM_SECRET.',
    );
  const secret: TokenSource = (rejected) => {
    if (rejected === null) return token;
    throw new CommandError(
      'notSignedIn',
      'The operator secret was rejected. Check BRANCHGATE_PLATFORM_SECRET.',
    );
  };
  return { client: createClient({ url: gatewayAddress(BRANCHGATE_URL), token: secret }) };
}

const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** The project that a command names: as given, `--project`, the environment, or the link of the folder. */
export function namedProject(command: Command, given = optionsOf(command).project): string | undefined {
  const named = given ?? (process.env.BRANCHGATE_PROJECT || undefined);
  if (named !== undefined || process.env.BRANCHGATE_URL) return named;
  return findLink()?.project;
}

export const projectsNamed = async ({ client }: Session, name: string) =>
  (await take(client.all('/api/v1/projects'))).filter((project) => project.name === name);

const LISTED = 10;

/** For a message: the projects with their IDs, which distinguish those of one name. */
function listOf(projects: readonly Schemas['Project'][]): string {
  const lines = projects
    .slice(0, LISTED)
    .map(({ id, name, created_at }) => `\n  ${id}  ${name}, created ${created_at.slice(0, 10)}`);
  const others = projects.length > LISTED ? [`\n  and ${projects.length - LISTED} others`] : [];
  return [...lines, ...others].join('');
}

/** The project of a command: the named one, or the only one there is. @returns its ID */
export async function projectOf(
  command: Command,
  session: Session,
  given: string | undefined = optionsOf(command).project,
): Promise<string> {
  const wanted = namedProject(command, given);
  if (wanted !== undefined && ID.test(wanted)) return wanted;
  const matches =
    wanted === undefined
      ? await take(session.client.all('/api/v1/projects'))
      : await projectsNamed(session, wanted);
  const [match, ...others] = matches;
  if (match && others.length === 0) {
    if (wanted === undefined) say(`Project: ${match.name}`);
    return match.id;
  }
  if (match)
    throw new CommandError(
      'usage',
      `${wanted === undefined ? 'There are several projects' : `Several projects are named ${wanted}`}. Give --project <id>, or run \`branchgate link <id>\`:${listOf(matches)}`,
    );
  throw new CommandError(
    'notFound',
    wanted === undefined
      ? 'There is no project. Run `branchgate project create <name>`.'
      : `There is no project named ${wanted}. Run \`branchgate project list\`.`,
  );
}

/** The branch of a command: as given, else the pinned one, else `main`. */
const branchOf = (given: string | undefined): string => given ?? pinnedBranch() ?? 'main';

/** The path parameters of a branch, and how to find them. */
export async function branchPath(command: Command, session: Session, given: string | undefined) {
  return { project_id: await projectOf(command, session), branch_ref: branchOf(given) };
}

/** The record of a branch by its name or ID. @throws CommandError */
export async function findBranch({ client }: Session, projectId: string, reference: string) {
  const branch = await branchIn(client, projectId, reference);
  if (!branch)
    throw new CommandError(
      'notFound',
      `There is no branch named ${reference}. Run \`branchgate branch list\`.`,
    );
  return branch;
}
