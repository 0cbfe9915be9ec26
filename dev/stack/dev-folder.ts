import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { z } from 'zod';
import { readKept, writeKept } from './kept-file.ts';

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
  identityProvider: join(devDir, 'identity-provider'),
  mail: join(devDir, 'mail'),
  logs: join(devDir, 'logs'),
  host: join(devDir, 'host'),
});

export type DevFolder = ReturnType<typeof devFolder>;

const Secrets = z.strictObject({ CREDENTIAL_KEYS: z.string().min(1), PLATFORM_SECRET: z.string().min(32) });

/** The gateway's secrets, made at the first start. */
export function gatewaySecrets({ secretsFile }: DevFolder): z.output<typeof Secrets> {
  const kept = readKept(secretsFile, Secrets);
  if (kept) return kept;
  const secrets = {
    CREDENTIAL_KEYS: `local-1:${randomBytes(32).toString('base64')}`,
    PLATFORM_SECRET: randomBytes(32).toString('base64url'),
  };
  writeKept(secretsFile, secrets);
  return secrets;
}
