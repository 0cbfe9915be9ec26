import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { z } from 'zod';
import { readStored, writeStored } from './stored-file.ts';

/** What lies where in DEV_DIR. The database host has a folder of its own: see `host-folder.ts`. */
export const devFolder = (devDir: string) => ({
  /** What the first start chose: ports, and where the database host's folder is. */
  choicesFile: join(devDir, 'choices.json'),
  secretsFile: join(devDir, 'secrets.json'),
  /** For other programs; there only while the stack runs. */
  stackFile: join(devDir, 'stack.json'),
  /** Enrolment that was begun; there only until it has succeeded. */
  enrolmentFile: join(devDir, 'enrolment.json'),
  gatewayState: join(devDir, 'gateway'),
  /** Temporary files of the gateway, which one that is killed leaves behind; the next one removes them. */
  gatewayScratch: join(devDir, 'gateway-scratch'),
  identityProvider: join(devDir, 'identity-provider'),
  mail: join(devDir, 'mail'),
  logs: join(devDir, 'logs'),
  host: join(devDir, 'host'),
});

export type DevFolder = ReturnType<typeof devFolder>;

const newKey = () => `local-1:${randomBytes(32).toString('base64')}`;
const newSecret = () => randomBytes(32).toString('base64url');

/** Those that have a default came later: a folder made before gets them at its next start. */
const Secrets = z.strictObject({
  CREDENTIAL_KEYS: z.string().min(1),
  PLATFORM_SECRET: z.string().min(32),
  JWT_KEYS: z.string().min(1).default(newKey),
  /** Of the gateway's client at the identity provider. */
  IDP_CLIENT_SECRET: z.string().min(1).default(newSecret),
});

export type GatewaySecrets = z.output<typeof Secrets>;

/** The gateway's secrets, made at the first start. */
export function gatewaySecrets({ secretsFile }: DevFolder): GatewaySecrets {
  const secrets =
    readStored(secretsFile, Secrets) ??
    Secrets.parse({ CREDENTIAL_KEYS: newKey(), PLATFORM_SECRET: newSecret() });
  writeStored(secretsFile, secrets);
  return secrets;
}
