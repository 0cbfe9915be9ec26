import { CommandError } from '../cli/exit-codes.ts';
import { isAttended } from '../cli/terminal.ts';
import { type Answers, completeAnswers } from './answers.ts';
import { Cloudflare } from './cloudflare.ts';
import type { Deployment, DeploymentFolder } from './deployment.ts';
import { isInUse } from './name-service.ts';
import { GENERATED_SECRETS, GIVEN_SECRETS, SecretsFile } from './secrets-file.ts';
import { checkSettings } from './settings.ts';

export interface DeployOptions extends Partial<Answers> {
  /** Folder with the record of this deployment. */
  folder: string;
  account?: string;
  tenant?: string;
  /** Settings of the Worker, `NAME=value`. */
  var?: string[];
  /** Takes over what an earlier deployment made whose record is lost. */
  adopt?: boolean;
  takeAddress?: boolean;
  /** A folder of a release, which is deployed instead of this checkout. */
  artifacts?: string;
  /** Seconds in which the gateway has to answer after an upload. */
  wait?: number;
  dryRun?: boolean;
}

/** The record with the settings of this run. @throws CommandError for what cannot be changed later */
export async function changeDeployment(deployment: Deployment, options: DeployOptions): Promise<Deployment> {
  const {
    name,
    address,
    account_id: account,
    owner_email: owner,
    secrets_file: secretsFile,
    vars,
  } = deployment;
  const known = { name, address, owner, secretsFile, mailFrom: vars.MAIL_FROM ?? '' };
  const answers = await completeAnswers(options, known);
  const fixed = { name, address, account };
  const wanted = {
    account,
    ...(options.account !== undefined && { account: options.account }),
    name: answers.name,
    address: answers.address,
  };
  for (const flag of ['name', 'address', 'account'] as const)
    if (wanted[flag] !== fixed[flag])
      throw new CommandError(
        'usage',
        `This deployment has --${flag} ${fixed[flag]}, which cannot be changed. For another gateway, give another --folder.`,
      );
  return {
    ...deployment,
    secrets_file: answers.secretsFile,
    ...(!deployment.owner_invited && {
      owner_email: answers.owner,
      tenant_id: options.tenant ?? deployment.tenant_id,
    }),
    vars: {
      ...vars,
      ...(options.mailFrom !== undefined && { MAIL_FROM: answers.mailFrom }),
      ...varsIn(options.var),
    },
  };
}

/** `NAME=value` words. @throws CommandError for another form, and for secrets */
function varsIn(words: readonly string[] = []): Record<string, string> {
  return Object.fromEntries(
    words.map((word) => {
      const [, name = '', value = ''] = /^([A-Z][A-Z0-9_]*)=(.+)$/s.exec(word) ?? [];
      if (name === '')
        throw new CommandError('usage', '--var takes NAME=value, for instance ALERT_EMAIL=a@example.com.');
      if ([...GENERATED_SECRETS, ...GIVEN_SECRETS].includes(name))
        throw new CommandError('usage', `${name} is a secret. Set it in the environment instead of --var.`);
      if (name === 'BASE_URL') throw new CommandError('usage', 'BASE_URL follows from --address.');
      return [name, value];
    }),
  );
}

/** The record of a new deployment, which is not stored yet. @throws CommandError if a name is taken */
export async function beginDeployment(folder: DeploymentFolder, options: DeployOptions): Promise<Deployment> {
  // With --adopt the others are known from the Worker. Nothing is asked before the flags are known to be
  // complete.
  const isAdopted = options.adopt === true;
  const unasked = { address: '', mailFrom: '', owner: '' };
  const answers = await completeAnswers(options, isAdopted ? unasked : {});
  const vars = { ...(answers.mailFrom !== '' && { MAIL_FROM: answers.mailFrom }), ...varsIn(options.var) };
  if (!isAdopted) {
    const url = `https://${answers.address}`;
    checkSettings({ ...vars, BASE_URL: url });
    new SecretsFile(answers.secretsFile, url).read();
  }
  const accountId = await accountOf(folder, options.account);
  const cloudflare = new Cloudflare(folder.path, accountId);
  const { name, address, owner, secretsFile } = answers;
  const [databaseId, version] = await Promise.all([
    cloudflare.findDatabase(name),
    cloudflare.servingVersion(name),
  ]);
  const deployment: Deployment = {
    name,
    account_id: accountId,
    address,
    owner_email: owner,
    tenant_id: options.tenant ?? name,
    secrets_file: secretsFile,
    vars,
    database_id: null,
    secrets_to_send: [],
    keys_to_rotate: {},
    release: null,
    owner_invited: false,
    migrations: null,
  };
  if (isAdopted) return adopted(deployment, cloudflare, databaseId, version);
  const taken = databaseId === null ? (version === null ? null : 'Worker') : 'D1 database';
  if (taken)
    throw new CommandError(
      'conflict',
      `The account has a ${taken} named ${name} already. Choose another --name, or add --adopt if an earlier deployment of branchgate made it.`,
    );
  if (!options.takeAddress && (await isInUse(address)))
    throw new CommandError(
      'conflict',
      `${address} has a DNS record already, which the deployment would replace. Choose another --address, or add --take-address to replace it.`,
    );
  return deployment;
}

async function adopted(
  deployment: Deployment,
  cloudflare: Cloudflare,
  databaseId: string | null,
  version: string | null,
): Promise<Deployment> {
  const { name } = deployment;
  const { BASE_URL, ...vars } = version === null ? {} : await cloudflare.varsOf(name, version);
  if (databaseId === null || version === null || BASE_URL === undefined)
    throw new CommandError(
      'notFound',
      `The account has no gateway named ${name}. Check --name, or leave out --adopt to make a new one.`,
    );
  return {
    ...deployment,
    address: BASE_URL.replace(/^https:\/\//, ''),
    vars: { ...vars, ...deployment.vars },
    database_id: databaseId,
    release: {
      digest: '',
      version_id: version,
      previous_version_id: null,
      needs_host: false,
      answered: true,
    },
    owner_invited: true,
    migrations: null,
  };
}

/** The account of the login. @throws CommandError if there is none, or a choice */
async function accountOf(folder: DeploymentFolder, given: string | undefined): Promise<string> {
  const cloudflare = new Cloudflare(folder.path, null);
  let accounts = await cloudflare.accounts();
  if (accounts === null && isAttended() && !process.env.CLOUDFLARE_API_TOKEN) {
    await cloudflare.logIn();
    accounts = await cloudflare.accounts();
  }
  if (accounts === null)
    throw new CommandError(
      'notSignedIn',
      'You are not signed in to Cloudflare. Run `npx wrangler login`, or set CLOUDFLARE_API_TOKEN.',
    );
  const wanted = given ?? process.env.CLOUDFLARE_ACCOUNT_ID;
  const list = accounts.map(({ id, name }) => `\n  ${id}  ${name}`).join('');
  if (wanted !== undefined) {
    // A token may be allowed to use an account without being allowed to list it.
    if (accounts.length === 0 || accounts.some(({ id }) => id === wanted)) return wanted;
    throw new CommandError(
      'notFound',
      `The login has no account ${wanted}. Give one of these with --account:${list}`,
    );
  }
  const [account, ...others] = accounts;
  if (!account)
    throw new CommandError(
      'notFound',
      'The Cloudflare login has no account. Sign up at dash.cloudflare.com, or name the account of the token with --account.',
    );
  if (others.length > 0)
    throw new CommandError(
      'usage',
      `The login has several accounts. Give one of these with --account:${list}`,
    );
  return account.id;
}
