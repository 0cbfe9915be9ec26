import { randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { CommandError } from '../cli/exit-codes.ts';

const KEY_BYTES = 32;

const newKey = (id: string) => `${id}:${randomBytes(KEY_BYTES).toString('base64')}`;

/** Secrets that are lists of keys, of which the first one seals or signs. */
export const KEY_LISTS = ['CREDENTIAL_KEYS', 'JWT_KEYS'] as const;

/** How the gateway's own secrets are made. */
const GENERATED: Record<string, () => string> = {
  CREDENTIAL_KEYS: () => newKey('k1'),
  JWT_KEYS: () => newKey('k1'),
  PLATFORM_SECRET: () => randomBytes(KEY_BYTES).toString('base64url'),
};
export const GENERATED_SECRETS = Object.keys(GENERATED);

/** Secrets of services that the gateway uses. They are read from the environment, never from an argument. */
export const GIVEN_SECRETS = ['MAIL_API_KEY', 'IDP_CLIENT_SECRET', 'DNS_API_TOKEN'];

const firstIdOf = (keys: string): string => keys.split(':')[0] ?? '';

/** The ID of the key that comes after those of a list: `k2` after `k1`. */
export const nextKeyId = (keys: string): string =>
  `k${1 + Math.max(0, ...keys.split(',').map((key) => Number(/^\s*k(\d+):/.exec(key)?.[1] ?? 0)))}`;

/** The operator's copy of the secrets: a line `NAME=value` for each, readable by its owner alone. */
export class SecretsFile {
  readonly path: string;
  readonly #gateway: string;

  /** @param gateway its address, which the file names, so that no file of another gateway is overwritten */
  constructor(path: string, gateway: string) {
    this.path = path;
    this.#gateway = gateway;
  }

  /** The secrets by name; empty without a file. @throws CommandError for the file of another gateway */
  read(): Record<string, string> {
    if (!existsSync(this.path)) return {};
    const entries = readFileSync(this.path, 'utf8')
      .split('\n')
      .filter((line) => /^[A-Z_]+=/.test(line))
      .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)] as const);
    const { BASE_URL, ...secrets } = Object.fromEntries(entries);
    if (BASE_URL !== this.#gateway)
      throw new CommandError(
        'conflict',
        `${this.path} is not the file of ${this.#gateway}, but of ${BASE_URL ?? 'something else'}. Choose another file with --secrets-file.`,
      );
    return secrets;
  }

  /** Adds those of `names` that are missing, and those of `given` that have another value. */
  complete(names: readonly string[], given: Readonly<Record<string, string>>): Record<string, string> {
    const before = this.read();
    const after = { ...before, ...given };
    for (const name of names) after[name] ??= GENERATED[name]?.() ?? '';
    if (JSON.stringify(after) !== JSON.stringify(before)) this.#write(after);
    return after;
  }

  /** Puts a new key with this ID first in a list and keeps the others, unless it is first already. */
  putKeyFirst(name: string, id: string): void {
    const secrets = this.read();
    const keys = secrets[name];
    if (keys === undefined) throw this.missing(name);
    if (firstIdOf(keys) !== id) this.#write({ ...secrets, [name]: `${newKey(id)},${keys}` });
  }

  missing(name: string): CommandError {
    return new CommandError(
      'failed',
      `${name} is not in ${this.path}, and Cloudflare does not show it again. Restore the file, or name it with --secrets-file.`,
    );
  }

  #write(secrets: Record<string, string>): void {
    const lines = Object.entries({ BASE_URL: this.#gateway, ...secrets }).map(
      ([name, value]) => `${name}=${value}`,
    );
    const head =
      '# Secrets of a branchgate gateway. Without CREDENTIAL_KEYS its stored passwords cannot be read.';
    mkdirSync(dirname(this.path), { recursive: true, mode: 0o700 });
    const unfinished = `${this.path}.${process.pid}`;
    const file = openSync(unfinished, 'w', 0o600);
    writeSync(file, `${[head, ...lines].join('\n')}\n`);
    // The secrets are sent next, and then nobody else has them.
    fsyncSync(file);
    closeSync(file);
    renameSync(unfinished, this.path);
  }
}
