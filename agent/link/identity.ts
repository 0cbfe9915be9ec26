import { chmod, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { PublicKey } from '../../shared/protocol/enrolment.ts';

/** Private half of the host's key. It is created here and never leaves this machine. */
export const PrivateKey = z.strictObject({ ...PublicKey.shape, d: PublicKey.shape.x });
export type PrivateKey = z.output<typeof PrivateKey>;

/** The host's identity at the gateway: `STATE_DIR/host.json`. */
const HostIdentity = z.strictObject({ host_id: z.uuid(), private_key: PrivateKey });
export type HostIdentity = z.output<typeof HostIdentity>;

const IDENTITY_FILE = 'host.json';

/**
 * The identity in `stateDir`; null when this host was never enrolled.
 * @throws Error when the file is damaged
 */
export const readIdentity = (stateDir: string) => readState(join(stateDir, IDENTITY_FILE), HostIdentity);

export const writeIdentity = (stateDir: string, identity: HostIdentity) =>
  writeState(join(stateDir, IDENTITY_FILE), identity);

export async function readState<S extends z.ZodType>(path: string, schema: S): Promise<z.output<S> | null> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
  // The file contains a secret, so the error quotes neither the parser's message nor the schema's.
  try {
    return schema.parse(JSON.parse(text));
  } catch {
    throw new Error(`${path} is damaged: restore it, or enrol this host again`);
  }
}

/**
 * Replaces the file atomically, so that a crash leaves the old file or the new one, also while other processes replace it. Only
 * its owner can read it.
 */
export async function writeState(path: string, state: unknown): Promise<void> {
  await mkdir(join(path, '..'), { recursive: true, mode: 0o700 });
  const temporary = `${path}.${process.pid}.new`;
  await writeFile(temporary, `${JSON.stringify(state)}\n`, { mode: 0o600, flush: true });
  await chmod(temporary, 0o600);
  await rename(temporary, path);
}
