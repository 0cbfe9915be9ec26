import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { Refusal } from './settings.ts';

/**
 * A JSON file that the stack stores between starts; null when it does not exist yet.
 * @throws Refusal when the file is unreadable, because new values would not match the rest of the stored
 *   state
 */
export function readStored<S extends z.ZodType>(path: string, schema: S): z.output<S> | null {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    throw new Refusal(`${path} cannot be read (${code}): start the stack as its owner`);
  }
  try {
    return schema.parse(JSON.parse(text));
  } catch {
    // Quotes neither the parser's message nor the schema's, because the file may contain secrets.
    throw new Refusal(`${path} is damaged: restore it, or set DEV_DIR to a new folder`);
  }
}

/** Replaces the file atomically, so that readers see the old file or the new one. */
export function writeStored(path: string, value: unknown, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true });
  const temporary = `${path}.${process.pid}.new`;
  writeFileSync(temporary, `${JSON.stringify(value, null, 2)}\n`, { mode, flush: true });
  renameSync(temporary, path);
}

/** Files and folders in DEV_DIR. The database host has its own folder: see `host-folder.ts`. */
export const devFolder = (devDir: string) => ({
  /** Choices of the first start: the ports, and the folder of the database host. */
  choicesFile: join(devDir, 'choices.json'),
  secretsFile: join(devDir, 'secrets.json'),
  /** For other programs; exists only while the stack runs. */
  stackFile: join(devDir, 'stack.json'),
  /** Certificate of the authority that signed the servers' certificate. */
  authorityFile: join(devDir, 'ca.crt'),
  /** An enrolment in progress; exists only until it has succeeded. */
  enrolmentFile: join(devDir, 'enrolment.json'),
  gatewayState: join(devDir, 'gateway'),
  /** The gateway's program, bundled at each start of the stack. */
  workerBundle: join(devDir, 'worker.mjs'),
  /** The console's static files, built at each start of the stack. */
  consoleAssets: join(devDir, 'console'),
  /** Temporary files of the gateway. The next gateway removes those of one that was killed. */
  gatewayScratch: join(devDir, 'gateway-scratch'),
  identityProvider: join(devDir, 'identity-provider'),
  mail: join(devDir, 'mail'),
  logs: join(devDir, 'logs'),
  host: join(devDir, 'host'),
});

/** The same for a further database host, whose own files have the number of the host. */
export const furtherFolder = (devDir: string, number: number): DevFolder => ({
  ...devFolder(devDir),
  enrolmentFile: join(devDir, `enrolment-${number}.json`),
  host: join(devDir, `host-${number}`),
});

export type DevFolder = ReturnType<typeof devFolder>;

const newKey = () => `local-1:${randomBytes(32).toString('base64')}`;
const newSecret = () => randomBytes(32).toString('base64url');

/** Secrets with a default were added later: an older folder gets them at its next start. */
const Secrets = z.strictObject({
  CREDENTIAL_KEYS: z.string().min(1),
  PLATFORM_SECRET: z.string().min(32),
  JWT_KEYS: z.string().min(1).default(newKey),
  /** Secret of the gateway as a client of the identity provider. */
  IDP_CLIENT_SECRET: z.string().min(1).default(newSecret),
});

export type GatewaySecrets = z.output<typeof Secrets>;

/** The gateway's secrets, created at the first start. */
export function gatewaySecrets({ secretsFile }: DevFolder): GatewaySecrets {
  const secrets =
    readStored(secretsFile, Secrets) ??
    Secrets.parse({ CREDENTIAL_KEYS: newKey(), PLATFORM_SECRET: newSecret() });
  writeStored(secretsFile, secrets);
  return secrets;
}
