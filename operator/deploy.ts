import { CommandError } from '../cli/exit-codes.ts';
import { say } from '../cli/output.ts';
import { writeHeaders } from '../dev/build/console.ts';
import { BEFORE_BASELINE, isBeforeBaseline } from '../dev/gateway/migrations.ts';
import { type Artifacts, digestOf, makeArtifacts, migrationsOf, wranglerConfiguration } from './artifacts.ts';
import { beginDeployment, changeDeployment, type DeployOptions } from './begin-deployment.ts';
import { Cloudflare } from './cloudflare.ts';
import { type Deployment, DeploymentFolder } from './deployment.ts';
import { askReadiness, awaitAnswers, inviteOwner } from './gateway.ts';
import { GENERATED_SECRETS, GIVEN_SECRETS, SecretsFile } from './secrets-file.ts';
import { checkSettings } from './settings.ts';

/** One thing that is missing, and how to make it. */
interface Step {
  name: string;
  /** What it does, in the words of `--dry-run`. */
  will: string;
  run(): Promise<void>;
}

export interface DeployResult {
  address: string;
  version_id: string | null;
  secrets_file: string;
  /** What was done, or would be done. */
  done: { step: string; what: string }[];
}

/** After this time a version that does not answer is replaced by the one before. */
const ANSWER_SECONDS = 60;
/** The first upload waits for the certificate of a new domain. */
const FIRST_ANSWER_SECONDS = 600;

/** Makes what is missing of a gateway at Cloudflare. @param isUpgrade whether there has to be one already */
export async function deploy(options: DeployOptions, isUpgrade = false): Promise<DeployResult> {
  const folder = new DeploymentFolder(options.folder);
  const stored = folder.read();
  if (isUpgrade && !stored)
    throw new CommandError(
      'usage',
      `${options.folder} has no record of a deployment. Run \`npm run deploy\` first.`,
    );
  const deployment = stored
    ? await changeDeployment(stored, options)
    : await beginDeployment(folder, options);
  const artifacts = await makeArtifacts(options.artifacts);
  const run = new Run(folder, deployment, artifacts, options);
  writeHeaders(artifacts.console, deployment.vars);
  const steps = await run.missing();
  const done = steps.map(({ name, will }) => ({ step: name, what: will }));
  if (!options.dryRun) {
    run.store();
    for (const step of steps) {
      say(`${step.will} …`);
      await step.run();
    }
  }
  return {
    address: `https://${deployment.address}`,
    version_id: deployment.release?.version_id ?? null,
    secrets_file: deployment.secrets_file,
    done,
  };
}

/** One run: compares what there is with what there should be. */
class Run {
  readonly #folder: DeploymentFolder;
  readonly #deployment: Deployment;
  readonly #artifacts: Artifacts;
  readonly #options: DeployOptions;
  readonly #secrets: SecretsFile;
  /** Whether nothing has been made yet. */
  readonly #isNew: boolean;

  constructor(
    folder: DeploymentFolder,
    deployment: Deployment,
    artifacts: Artifacts,
    options: DeployOptions,
  ) {
    this.#folder = folder;
    this.#deployment = deployment;
    this.#artifacts = artifacts;
    this.#options = options;
    this.#isNew = folder.read() === null && options.adopt !== true;
    deployment.vars.BASE_URL = this.#url;
    checkSettings(deployment.vars);
    this.#secrets = new SecretsFile(deployment.secrets_file, this.#url);
  }

  get #url(): string {
    return `https://${this.#deployment.address}`;
  }

  store(): void {
    this.#folder.store(this.#deployment);
  }

  get #cloudflare(): Cloudflare {
    const configuration = wranglerConfiguration(this.#deployment, this.#artifacts);
    const cloudflare = new Cloudflare(this.#folder.path, this.#deployment.account_id);
    return cloudflare.configuredBy(this.#folder.storeConfiguration(configuration));
  }

  /** The steps to a complete deployment, in their order; none if nothing is missing. */
  async missing(): Promise<Step[]> {
    const { name, database_id: databaseId } = this.#deployment;
    const cloudflare = this.#cloudflare;
    const [applied, secrets, version] = await Promise.all([
      databaseId === null ? [] : cloudflare.appliedMigrations(name),
      this.#isNew ? null : cloudflare.secretNames(name),
      this.#isNew ? null : cloudflare.servingVersion(name),
    ]);
    // Those of the dashboard stay, so they have to be valid too.
    if (version !== null)
      checkSettings({ ...(await cloudflare.varsOf(name, version)), ...this.#deployment.vars });
    const steps = [
      this.#databaseStep(),
      this.#migrationsStep(applied),
      this.#secretsStep(secrets ?? []),
      this.#releaseStep(version),
      this.#ownerStep(),
    ];
    return steps.filter((step) => step !== null);
  }

  #databaseStep(): Step | null {
    const deployment = this.#deployment;
    if (deployment.database_id !== null) return null;
    return {
      name: 'database',
      will: `Make the D1 database ${deployment.name}`,
      run: async () => {
        // A run that was killed may have made it.
        const made = this.#isNew ? null : await this.#cloudflare.findDatabase(deployment.name);
        deployment.database_id = made ?? (await this.#cloudflare.createDatabase(deployment.name));
        this.store();
      },
    };
  }

  #migrationsStep(applied: readonly string[]): Step | null {
    const deployment = this.#deployment;
    const all = migrationsOf(this.#artifacts);
    if (isBeforeBaseline(applied, all))
      throw new CommandError('conflict', `Nothing was changed: ${BEFORE_BASELINE}.`);
    const missing = all.filter((name) => !applied.includes(name));
    if (missing.length === 0) return null;
    return {
      name: 'migrations',
      will: `Apply ${missing.length} migrations of the database`,
      run: async () => {
        deployment.migrations = all;
        this.store();
        await this.#cloudflare.applyMigrations(deployment.name);
      },
    };
  }

  #secretsStep(present: readonly string[]): Step | null {
    const deployment = this.#deployment;
    const copy = this.#secrets.read();
    const given = givenSecrets();
    const names = new Set([
      ...GENERATED_SECRETS.filter((name) => !present.includes(name)),
      ...Object.keys(copy).filter((name) => !present.includes(name)),
      ...Object.keys(given).filter((name) => given[name] !== copy[name]),
      ...deployment.secrets_to_send,
      ...Object.keys(deployment.keys_to_rotate),
    ]);
    if (names.size === 0) return null;
    return {
      name: 'secrets',
      will: `Send the secrets ${[...names].join(', ')}, with a copy in ${this.#secrets.path}`,
      run: async () => {
        deployment.secrets_to_send = [...names];
        this.store();
        for (const [name, id] of Object.entries(deployment.keys_to_rotate))
          this.#secrets.putKeyFirst(name, id);
        const wanted = this.#secrets.complete(
          [...names].filter((name) => GENERATED_SECRETS.includes(name)),
          given,
        );
        const sent = Object.entries(wanted).filter(([name]) => names.has(name));
        await this.#cloudflare.putSecrets(deployment.name, Object.fromEntries(sent));
        deployment.secrets_to_send = [];
        deployment.keys_to_rotate = {};
        if (deployment.release?.answered)
          deployment.release.version_id = await this.#cloudflare.servingVersion(deployment.name);
        this.store();
      },
    };
  }

  #releaseStep(serving: string | null): Step | null {
    const deployment = this.#deployment;
    const { release } = deployment;
    // A database that is to be made changes the digest, and then there is no release either.
    const isSame =
      release?.digest === digestOf(deployment, this.#artifacts) && release.version_id === serving;
    if (isSame && release.answered) return null;
    return {
      name: 'release',
      will: isSame ? `Wait for ${this.#url}` : `Upload the Worker and the console to ${this.#url}`,
      run: () => this.#release(isSame),
    };
  }

  async #release(isUploaded: boolean): Promise<void> {
    const deployment = this.#deployment;
    const before = deployment.release;
    // What was uploaded but has not answered is nothing to go back to.
    const previous = before?.answered ? before.version_id : (before?.previous_version_id ?? null);
    if (!isUploaded) {
      const digest = digestOf(deployment, this.#artifacts);
      const needsHost = before?.answered
        ? (await askReadiness(this.#url)) === 'ready'
        : (before?.needs_host ?? false);
      deployment.release = {
        digest,
        version_id: null,
        previous_version_id: previous,
        needs_host: needsHost,
        answered: false,
      };
      this.store();
      deployment.release.version_id = await this.#cloudflare.deploy();
      this.store();
    }
    const seconds = this.#options.wait ?? (previous === null ? FIRST_ANSWER_SECONDS : ANSWER_SECONDS);
    const reason = await awaitAnswers(this.#url, {
      seconds,
      needsHost: deployment.release?.needs_host ?? false,
    });
    if (reason === null && deployment.release) {
      deployment.release.answered = true;
      this.store();
      return;
    }
    if (previous === null)
      throw new CommandError(
        'away',
        `${this.#url} does not answer: ${reason}. A new domain needs some minutes for its certificate: run the command again, which continues here. \`npm run deploy -- doctor\` says more.`,
      );
    await this.#cloudflare.rollBack(
      deployment.name,
      previous,
      'The gateway did not answer after the upgrade.',
    );
    deployment.release = {
      digest: '',
      version_id: previous,
      previous_version_id: null,
      needs_host: false,
      answered: true,
    };
    this.store();
    throw new CommandError(
      'failed',
      `The new version did not answer within ${seconds} s: ${reason}. The version before serves again (${previous}). Look at the logs of the Worker in the dashboard of Cloudflare before the next attempt.`,
    );
  }

  #ownerStep(): Step | null {
    const deployment = this.#deployment;
    const { owner_email, owner_invited: isInvited, tenant_id, vars } = deployment;
    if (isInvited) return null;
    if (vars.MAIL_API_URL === undefined) {
      say(
        `No mail is sent, so ${owner_email} is not invited yet. Run the command again with --var MAIL_API_URL=<address of your mail service> and its key in MAIL_API_KEY.`,
      );
      return null;
    }
    return {
      name: 'owner',
      will: `Invite ${owner_email} as the owner of ${tenant_id}`,
      run: async () => {
        const { PLATFORM_SECRET = process.env.BRANCHGATE_PLATFORM_SECRET } = this.#secrets.read();
        if (!PLATFORM_SECRET) throw this.#secrets.missing('PLATFORM_SECRET');
        const invitation = { tenant_id, name: tenant_id, owner_email };
        await inviteOwner(this.#url, PLATFORM_SECRET, invitation);
        deployment.owner_invited = true;
        this.store();
      },
    };
  }
}

/** @throws CommandError for one that a line cannot hold */
function givenSecrets(): Record<string, string> {
  const entries = GIVEN_SECRETS.map((name) => [name, process.env[name]?.trim() ?? ''] as const);
  const given = entries.filter(([, value]) => value !== '');
  const broken = given.find(([, value]) => /[\r\n]/.test(value));
  if (broken)
    throw new CommandError('usage', `${broken[0]} in the environment has several lines. Give one line.`);
  return Object.fromEntries(given);
}
