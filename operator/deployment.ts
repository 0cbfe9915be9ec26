import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { CommandError } from '../cli/exit-codes.ts';

/**
 * What `npm run deploy` has made, without secrets. It is stored before each call that changes something at
 * Cloudflare, so that a run that was killed is continued by the next one.
 */
const Deployment = z.strictObject({
  /** Name of the Worker and of the D1 database. */
  name: z.string(),
  account_id: z.string(),
  /** Host name of the gateway. */
  address: z.string(),
  owner_email: z.string(),
  /** Tenant of the first owner. */
  tenant_id: z.string(),
  /** The operator's copy of the secrets. */
  secrets_file: z.string(),
  /** Settings of the Worker that are no secrets. */
  vars: z.record(z.string(), z.string()),
  database_id: z.string().nullable(),
  /** Secrets whose value in the copy may not have reached the Worker yet. */
  secrets_to_send: z.array(z.string()),
  /** The ID that the first key of a secret is about to get, by the name of the secret. */
  keys_to_rotate: z.record(z.string(), z.string()),
  release: z
    .strictObject({
      /** Digest of everything that was uploaded. */
      digest: z.string(),
      /** Null until the upload has ended. */
      version_id: z.string().nullable(),
      /** The version to go back to; null for the first one. */
      previous_version_id: z.string().nullable(),
      /** Whether a database host was connected before, so that it has to be afterwards. */
      needs_host: z.boolean(),
      /** Whether the gateway has answered with it. */
      answered: z.boolean(),
    })
    .nullable(),
  owner_invited: z.boolean(),
  /** Names of the migrations that were deployed; null: an earlier release deployed, and did not store them. */
  migrations: z.array(z.string()).nullable().default(null),
});

export type Deployment = z.output<typeof Deployment>;

export class DeploymentFolder {
  readonly path: string;

  constructor(path: string) {
    this.path = resolve(path);
  }

  /** @throws CommandError when the record cannot be read */
  read(): Deployment | null {
    if (!existsSync(this.#record)) return null;
    try {
      return Deployment.parse(JSON.parse(readFileSync(this.#record, 'utf8')));
    } catch {
      throw new CommandError(
        'failed',
        `${this.#record} is damaged. Restore it, or remove it and run the command again with --adopt.`,
      );
    }
  }

  store(deployment: Deployment): void {
    this.#write(this.#record, JSON.stringify(Deployment.parse(deployment), null, 2));
  }

  /** Writes wrangler's configuration. @returns its path */
  storeConfiguration(configuration: object): string {
    const path = join(this.path, 'wrangler.json');
    this.#write(path, JSON.stringify(configuration, null, 2));
    return path;
  }

  get #record(): string {
    return join(this.path, 'deployment.json');
  }

  /** A reader sees the old content or the new one, also after a kill. */
  #write(path: string, text: string): void {
    mkdirSync(this.path, { recursive: true });
    const unfinished = `${path}.${process.pid}`;
    writeFileSync(unfinished, `${text}\n`);
    renameSync(unfinished, path);
  }
}
