import { createPublicKey, verify } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { sha256Of } from './program-file.ts';

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
