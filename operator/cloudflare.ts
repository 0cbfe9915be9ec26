import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { z } from 'zod';
import { CommandError } from '../cli/exit-codes.ts';
import { ROOT } from '../dev/build/repository.ts';
import { GIVEN_SECRETS } from './secrets-file.ts';

const WRANGLER = join(ROOT, 'node_modules/wrangler/bin/wrangler.js');

const PERMISSIONS =
  'Workers Scripts: Edit, D1: Edit and Account Settings: Read of the account, and Workers Routes: Edit and Zone: Read of the domain';

const SIGN_IN = 'Run `npx wrangler login`, or set CLOUDFLARE_API_TOKEN.';

/** What operators get wrong, by what wrangler prints then. The first match counts. */
const CAUSES: readonly (readonly [RegExp, string])[] = [
  [
    /token[^\n]*expired|expired[^\n]*token/i,
    'The token in CLOUDFLARE_API_TOKEN has expired. Make another one in the dashboard of Cloudflare (My Profile, API Tokens).',
  ],
  [
    /\[code: (?:1000|6003|6111|9109)\]|Invalid API Token|Invalid access token|Failed to retrieve account IDs/i,
    `Cloudflare rejects the token in CLOUDFLARE_API_TOKEN. Check it for missing characters, or make another one with ${PERMISSIONS}.`,
  ],
  [
    /\[code: 10000\]/,
    `The Cloudflare login may not do this. It needs ${PERMISSIONS}, without a filter that excludes this machine's address.`,
  ],
  [
    /not logged in|necessary to set a CLOUDFLARE_API_TOKEN/i,
    `You are not signed in to Cloudflare. ${SIGN_IN}`,
  ],
  [
    /zone_not_found|\[code: 1008[23]\]|Could not find zone/i,
    'No domain of this Cloudflare account contains the address of the gateway. Add the domain to the account and set its name servers, or choose another address.',
  ],
  [
    /\[code: 7502\]|database with that name already exists/i,
    'A D1 database of this name exists already. Choose another --name.',
  ],
  [
    /\[code: 7404\]|Couldn't find (?:a )?D1 DB/i,
    'The D1 database of the gateway is gone. Restore it, or remove the record in the folder of the deployment to start again.',
  ],
  [
    /fetch failed|ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN/,
    "Cloudflare's API cannot be reached. Check the network, and HTTPS_PROXY if there is a proxy.",
  ],
];

const PRINTED_LINES = 12;

/** @param output of wrangler, without control characters */
function failureOf(words: readonly string[], output: string): CommandError {
  const cause = CAUSES.find(([pattern]) => pattern.test(output))?.[1];
  const lines = output
    .split('\n')
    .map((line) => line.trimEnd())
    .filter((line) => line !== '' && !/If you think this is a bug|github\.com\/cloudflare/.test(line));
  const said = lines.slice(-PRINTED_LINES).map((line) => `\n  ${line}`);
  const failed = `\`wrangler ${words.slice(0, 2).join(' ')}\` failed`;
  return new CommandError(
    'failed',
    cause ? `${cause} (${failed}:)${said.join('')}` : `${failed}:${said.join('')}`,
  );
}

const isWorkerMissing = (output: string) => /\[code: 10007\]|Worker "[^"]*" not found/.test(output);

const Accounts = z.object({
  loggedIn: z.boolean(),
  accounts: z.array(z.object({ id: z.string(), name: z.string() })).optional(),
});
const Databases = z.array(z.object({ uuid: z.string(), name: z.string() }));
const Rows = z.tuple([z.object({ results: z.array(z.object({ name: z.string() })) })]);
const SecretNames = z.array(z.object({ name: z.string() }));
const Deployed = z.object({
  versions: z.array(z.object({ version_id: z.string(), percentage: z.number() })),
});
/** A line of wrangler's report (`WRANGLER_OUTPUT_FILE_PATH`). */
const DeployReport = z.object({ type: z.literal('deploy'), version_id: z.string() });
const Version = z.object({
  resources: z.object({
    bindings: z.array(z.object({ type: z.string(), name: z.string(), text: z.string().optional() })),
  }),
});

interface Ended {
  code: number;
  stdout: string;
  /** Both outputs, without control characters. */
  output: string;
}

/** The account at Cloudflare. The installed wrangler makes all calls. */
export class Cloudflare {
  readonly #folder: string;
  readonly #accountId: string | null;
  #configuration: string | null = null;

  /** @param folder for wrangler's own files. @param accountId null: not known yet */
  constructor(folder: string, accountId: string | null) {
    this.#folder = folder;
    this.#accountId = accountId;
  }

  /** The same login, with another configuration. @param path of wrangler's configuration */
  configuredBy(path: string): Cloudflare {
    const configured = new Cloudflare(this.#folder, this.#accountId);
    configured.#configuration = path;
    return configured;
  }

  /** The accounts of the login; null if there is no login. */
  async accounts(): Promise<{ id: string; name: string }[] | null> {
    const words = ['whoami', '--json'];
    const ended = await this.#run(words);
    const parsed = Accounts.safeParse(jsonIn(ended.stdout));
    if (parsed.success) return parsed.data.loggedIn ? (parsed.data.accounts ?? []) : null;
    throw failureOf(words, ended.output);
  }

  /** Signs a person in, in the browser. */
  async logIn(): Promise<void> {
    const child = spawn(process.execPath, [WRANGLER, 'login'], { stdio: 'inherit', env: this.#env });
    const [code] = await once(child, 'close');
    if (code !== 0) throw new CommandError('notSignedIn', `You are not signed in to Cloudflare. ${SIGN_IN}`);
  }

  async findDatabase(name: string): Promise<string | null> {
    const databases = Databases.parse(jsonIn((await this.#call(['d1', 'list', '--json'])).stdout));
    return databases.find((database) => database.name === name)?.uuid ?? null;
  }

  /** @returns its ID */
  async createDatabase(name: string): Promise<string | null> {
    const { output } = await this.#call(['d1', 'create', name]);
    return /"database_id": "([0-9a-f-]{36})"/.exec(output)?.[1] ?? this.findDatabase(name);
  }

  /** The names of the migrations that D1 has. @param database its name in the configuration */
  async appliedMigrations(database: string): Promise<string[]> {
    const command = 'SELECT name FROM d1_migrations ORDER BY id';
    const words = ['d1', 'execute', database, '--remote', '--json', '--command', command];
    const ended = await this.#run(words);
    if (ended.code === 0) return Rows.parse(jsonIn(ended.stdout))[0].results.map(({ name }) => name);
    if (/no such table/i.test(ended.output)) return [];
    throw failureOf(words, ended.output);
  }

  async applyMigrations(database: string): Promise<void> {
    await this.#call(['d1', 'migrations', 'apply', database, '--remote']);
  }

  /** The names of a Worker's secrets; null if there is no such Worker. */
  async secretNames(worker: string): Promise<string[] | null> {
    const ended = await this.#ofWorker(['secret', 'list', '--name', worker, '--format', 'json']);
    return ended && SecretNames.parse(jsonIn(ended.stdout)).map(({ name }) => name);
  }

  /** Sends secrets to a Worker, which is created if it is missing. They pass through standard input only. */
  async putSecrets(worker: string, secrets: Readonly<Record<string, string>>): Promise<void> {
    await this.#call(['secret', 'bulk', '--name', worker], JSON.stringify(secrets));
  }

  /** The version of a Worker that serves; null if there is no such Worker. */
  async servingVersion(worker: string): Promise<string | null> {
    const ended = await this.#ofWorker(['deployments', 'status', '--name', worker, '--json']);
    if (!ended) return null;
    const { versions } = Deployed.parse(jsonIn(ended.stdout));
    return versions.toSorted((a, b) => b.percentage - a.percentage)[0]?.version_id ?? null;
  }

  /** The settings of a version that are no secrets. */
  async varsOf(worker: string, version: string): Promise<Record<string, string>> {
    const ended = await this.#call(['versions', 'view', version, '--name', worker, '--json']);
    const { bindings } = Version.parse(jsonIn(ended.stdout)).resources;
    const texts = bindings.filter(({ type }) => type === 'plain_text');
    return Object.fromEntries(texts.map(({ name, text = '' }) => [name, text]));
  }

  /** Uploads the Worker and the console, and attaches the domain. @returns the version that serves then */
  async deploy(): Promise<string> {
    // Otherwise the Durable Objects run the former code for up to five minutes, also of a version that does
    // not work.
    const words = ['deploy', '--durable-objects-code-update-mode', 'immediate'];
    const report = join(this.#folder, 'cache/deploy.ndjson');
    rmSync(report, { force: true });
    await this.#call(words, '', { WRANGLER_OUTPUT_FILE_PATH: report });
    const lines = readFileSync(report, 'utf8').split('\n');
    const reports = lines.map((line) => DeployReport.safeParse(jsonIn(line)));
    const done = reports.find(({ success }) => success);
    if (!done?.data) throw failureOf(words, 'It did not report the version that it uploaded.');
    return done.data.version_id;
  }

  async rollBack(worker: string, version: string, reason: string): Promise<void> {
    const mode = ['--durable-objects-code-update-mode', 'immediate'];
    await this.#call(['rollback', version, '--name', worker, '--message', reason, '--yes', ...mode]);
  }

  /** @returns null if there is no such Worker */
  async #ofWorker(words: string[]): Promise<Ended | null> {
    const ended = await this.#run(words);
    if (ended.code === 0) return ended;
    if (isWorkerMissing(ended.output)) return null;
    throw failureOf(words, ended.output);
  }

  async #call(words: string[], input?: string, env?: Record<string, string>): Promise<Ended> {
    const ended = await this.#run(words, input, env);
    if (ended.code !== 0) throw failureOf(words, ended.output);
    return ended;
  }

  get #env(): NodeJS.ProcessEnv {
    const withheld = [...GIVEN_SECRETS, 'BRANCHGATE_PLATFORM_SECRET'];
    const inherited = Object.entries(process.env).filter(([name]) => !withheld.includes(name));
    return {
      ...Object.fromEntries(inherited),
      ...(this.#accountId !== null && { CLOUDFLARE_ACCOUNT_ID: this.#accountId }),
      WRANGLER_CACHE_DIR: join(this.#folder, 'cache'),
      // A third of the time of a call is the compilation of wrangler.
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? join(this.#folder, 'cache/compiled'),
      WRANGLER_HIDE_BANNER: 'true',
      WRANGLER_SEND_METRICS: 'false',
      WRANGLER_SEND_ERROR_REPORTS: 'false',
      WRANGLER_WRITE_LOGS: 'false',
      NO_COLOR: '1',
      FORCE_COLOR: '0',
    };
  }

  async #run(words: string[], input = '', env: Record<string, string> = {}): Promise<Ended> {
    mkdirSync(this.#folder, { recursive: true });
    const configuration = this.#configuration === null ? [] : ['--config', this.#configuration];
    const child = spawn(process.execPath, [WRANGLER, ...words, ...configuration], {
      cwd: this.#folder,
      env: { ...this.#env, ...env },
      stdio: 'pipe',
    });
    const texts = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      child[name].setEncoding('utf8').on('data', (text: string) => {
        texts[name] += text;
      });
    // It may end without reading its input.
    child.stdin.on('error', () => {});
    child.stdin.end(input);
    const [code] = await once(child, 'close');
    const output = stripVTControlCharacters(`${texts.stdout}\n${texts.stderr}`);
    return { code: code ?? 1, stdout: texts.stdout, output };
  }
}

/** The JSON that a command printed, possibly after other lines; null if there is none. */
function jsonIn(text: string): unknown {
  const begin = text.search(/^[[{]/m);
  try {
    return JSON.parse(text.slice(begin));
  } catch {
    return null;
  }
}
