import { createHash, createPublicKey, verify } from 'node:crypto';
import { readFileSync, realpathSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join, parse } from 'node:path';

/** The program that runs this command. */
export const installedProgram = (): string => realpathSync(process.argv[1] ?? '');

/** Files next to the installed program, with its extension, so that Node can run them. */
export const siblingOf = (program: string, kind: 'new' | 'previous'): string => {
  const { dir, name, ext } = parse(program);
  return join(dir, `${name}.${kind}${ext}`);
};

export const sha256Of = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

export const sha256OfFile = (path: string): string => sha256Of(readFileSync(path));

/**
 * What an upgrade of the program claims. Releases must not change it, as two upgrades can be by different
 * ones.
 */
export const upgradeName = (program: string): string =>
  `branchgate-upgrade-${sha256Of(Buffer.from(program))}`;

/** What proves that a program is the intended one. */
export type Proof = { sha256: string } | { signatureFile: string; publicKeyFile: string };

/** @throws Error unless the bytes are those that the proof is about */
export async function verifyProgram(bytes: Buffer, proof: Proof): Promise<void> {
  if ('sha256' in proof) {
    // As `sha256sum` prints it: the checksum, followed by the name of the file.
    const [expected = ''] = proof.sha256.trim().split(/\s/);
    if (!/^[0-9a-f]{64}$/i.test(expected))
      throw new Error('the checksum is not 64 hexadecimal digits: give the one of the release');
    if (expected.toLowerCase() !== sha256Of(bytes))
      throw new Error('the file does not have this checksum: download it again');
    return;
  }
  const [key, signature] = await Promise.all([readFile(proof.publicKeyFile), readFile(proof.signatureFile)]);
  if (!isSignedBy(bytes, key, signature))
    throw new Error('the signature is not one of this file by this key: download both again');
}

/** Only Ed25519: with another kind of key, the algorithm of the digest would have to be chosen too. */
function isSignedBy(bytes: Buffer, pem: Buffer, signature: Buffer): boolean {
  const key = createPublicKey(pem);
  if (key.asymmetricKeyType !== 'ed25519') throw new Error('the public key is not an Ed25519 key (PEM)');
  return verify(null, bytes, key, signature);
}

/**
 * Takes a name for this process, as an abstract unix socket (unix(7)). The kernel gives it to one process and
 * releases it however that process ends, so there is no lock file that could be stale.
 * @returns a function that releases the name, or null when another process has it
 */
export function claimName(name: string): Promise<(() => Promise<void>) | null> {
  const { promise, resolve, reject } = Promise.withResolvers<(() => Promise<void>) | null>();
  const server = createServer();
  server.once('error', (error: NodeJS.ErrnoException) =>
    error.code === 'EADDRINUSE' ? resolve(null) : reject(error),
  );
  server.listen(`\0${name}`, () => {
    server.unref();
    resolve(() => new Promise((done) => server.close(() => done())));
  });
  return promise;
}
