import { text } from 'node:stream/consumers';
import { Command } from 'commander';
import { type BranchgateClient, createClient } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { findLink } from '../link.ts';
import { signInByBrowser } from '../loopback-sign-in.ts';
import { printForPrograms, printRecord, printRecords, say } from '../output.ts';
import { signInByPassword } from '../password-sign-in.ts';
import { gatewayAddress, openSession, optionsOf, profileOf } from '../session.ts';
import { readProfiles, readTokens, removeTokens, storeProfiles, storeTokens } from '../stored.ts';
import { askPassword, isAttended } from '../terminal.ts';

interface LoginOptions {
  email?: string;
  passwordStdin?: boolean;
  code?: string;
  browser: boolean;
  keychain: boolean;
}

const login = () =>
  new Command('login')
    .description('Sign in, with the browser or with --email')
    .argument('[url]', 'address of the gateway (default: BRANCHGATE_URL, the linked one, or the last one)')
    .option(
      '--email <address>',
      'sign in with the identity provider of your company, or to an account with its password',
    )
    .option('--password-stdin', 'read the password from standard input')
    .option('--code <code>', 'code of the second factor')
    .option('--no-keychain', 'store the tokens in a file that only you can read, not in the keychain')
    .option('--no-browser', 'print the address only, and open no browser')
    .action(async (given: string | undefined, options: LoginOptions, command: Command) => {
      const profile = profileOf(optionsOf(command));
      const stored = readProfiles();
      const known = given ?? process.env.BRANCHGATE_URL ?? findLink()?.url ?? stored.profiles[profile]?.url;
      if (!known)
        throw new CommandError('usage', 'No gateway is known. Give its address: branchgate login https://…');
      const url = gatewayAddress(known);
      // Before a password is asked for: the address may come from a file of the folder.
      say(`Gateway: ${url}`);
      const client = createClient({ url });
      const { email } = options;
      const tokens =
        email === undefined || (await hasCompany(client, email, options))
          ? await signInByBrowser(client, options)
          : await signInByPassword(client, email, await passwordOf(options), options.code);
      const place = storeTokens(profile, { url, ...tokens }, options.keychain ? 'keychain' : 'file');
      storeProfiles({ current: profile, profiles: { ...stored.profiles, [profile]: { url } } });
      const me = await dataOf(createClient({ url, token: tokens.access_token }).api.GET('/api/v1/me'));
      say(`Signed in to ${url} as ${me.email}. The tokens are in ${place}.`);
      printForPrograms(command, me);
    });

/** Whether the company of an address has an identity provider, which a given password does not ask. */
async function hasCompany(
  { api }: BranchgateClient,
  email: string,
  { passwordStdin }: LoginOptions,
): Promise<boolean> {
  if (passwordStdin) return false;
  const { sso } = await dataOf(api.POST('/api/v1/auth/methods', { body: { email } }));
  return sso !== null;
}

async function passwordOf({ passwordStdin }: LoginOptions): Promise<string> {
  if (passwordStdin) return (await text(process.stdin)).replace(/\r?\n$/, '');
  if (!isAttended())
    throw new CommandError('usage', 'This needs an interactive terminal. Give --password-stdin.');
  return askPassword('Password');
}

const logout = () =>
  new Command('logout')
    .description('Sign out, and remove the stored tokens')
    .action(async (_options, command: Command) => {
      const profile = profileOf(optionsOf(command));
      const tokens = readTokens(profile);
      if (!tokens) return say('You are not signed in.');
      const { api } = createClient({ url: tokens.url, token: tokens.access_token });
      const refresh = tokens.refresh_token;
      const ended = await api
        .POST('/api/v1/auth/logout', { body: refresh === null ? {} : { refresh_token: refresh } })
        .catch(() => null);
      removeTokens(profile);
      say(
        ended?.response.ok
          ? 'Signed out.'
          : 'The tokens are removed here. The gateway did not confirm the sign-out.',
      );
    });

const whoami = () =>
  new Command('whoami').description('Show whose token is used').action(async (_options, command: Command) => {
    const { client } = openSession(command);
    printRecord(command, await dataOf(client.api.GET('/api/v1/me')));
  });

function profileCommand(): Command {
  const command = new Command('profile').description('Several gateways or accounts, each with its sign-in');
  command
    .command('list')
    .description('List profiles')
    .action((_options, self: Command) => {
      const { current, profiles } = readProfiles();
      const records = Object.entries(profiles).map(([name, { url }]) => ({
        name,
        url,
        current: name === current,
        signed_in: readTokens(name) !== null,
      }));
      printRecords(self, records, ['name', 'url', 'current', 'signed_in']);
    });
  command
    .command('use')
    .description('Make a profile the default')
    .argument('<profile>')
    .action((name: string, _options, self: Command) => {
      storeProfiles({ ...profilesWith(name), current: name });
      printForPrograms(self, { name });
    });
  command
    .command('delete')
    .description('Remove a profile and its tokens')
    .argument('<profile>')
    .action((name: string, _options, self: Command) => {
      const { current, profiles } = profilesWith(name);
      const { [name]: _, ...others } = profiles;
      removeTokens(name);
      storeProfiles({
        current: current === name ? (Object.keys(others)[0] ?? 'default') : current,
        profiles: others,
      });
      printForPrograms(self, { name });
    });
  return command;
}

function profilesWith(name: string) {
  const stored = readProfiles();
  if (!(name in stored.profiles))
    throw new CommandError('notFound', `There is no profile named ${name}. Run \`branchgate profile list\`.`);
  return stored;
}

export const signInCommands = (): Command[] => [login(), logout(), whoami(), profileCommand()];
