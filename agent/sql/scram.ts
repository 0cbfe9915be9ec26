import { createHash, createHmac, pbkdf2, randomBytes, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';

/** SCRAM-SHA-256 without channel binding (RFC 5802, RFC 7677), as PostgreSQL and PgBouncer speak it. */

const derive = promisify(pbkdf2);

const HASH = 'sha256';
const KEY_BYTES = 32;
const NONCE_BYTES = 18;

const hmac = (key: Buffer, text: string | Buffer) => createHmac(HASH, key).update(text).digest();
const sha256 = (bytes: Buffer) => createHash(HASH).update(bytes).digest();
const base64 = (text: string) => Buffer.from(text, 'base64');

/** PostgreSQL's form of a stored password, `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`. */
const VERIFIER = /^SCRAM-SHA-256\$(\d+):([\w+/=]+)\$([\w+/=]+):([\w+/=]+)$/;

/** A verifier of no password. To compare with it takes as long as with any other. */
const OF_NOBODY = `SCRAM-SHA-256$4096:${randomBytes(16).toString('base64')}$${randomBytes(KEY_BYTES).toString('base64')}:${randomBytes(KEY_BYTES).toString('base64')}`;

/** The keys by which a right password proves itself. */
export interface ScramKeys {
  iterations: number;
  /** In base64. */
  salt: string;
  clientKey: Buffer;
  storedKey: Buffer;
  serverKey: Buffer;
}

/**
 * Compares a password with a stored verifier in constant time, and takes as long without one.
 * @returns null for a wrong password
 */
export async function comparePassword(password: string, verifier: string | null): Promise<ScramKeys | null> {
  const parts = VERIFIER.exec(verifier ?? OF_NOBODY) ?? VERIFIER.exec(OF_NOBODY);
  const [, iterations, salt = '', stored = '', server = ''] = parts ?? [];
  const salted = await derive(password, base64(salt), Number(iterations), KEY_BYTES, HASH);
  const clientKey = hmac(salted, 'Client Key');
  const storedKey = sha256(clientKey);
  const expected = base64(stored);
  const isSame = expected.length === KEY_BYTES && timingSafeEqual(storedKey, expected);
  if (!isSame || verifier === null) return null;
  return { iterations: Number(iterations), salt, clientKey, storedKey, serverKey: base64(server) };
}

/** The server has refused the proof, or has another password by now. */
export class ScramRefused extends Error {
  override readonly name = 'ScramRefused';
}

/** The client's side of one exchange. */
export class ScramExchange {
  readonly #keys: ScramKeys;
  readonly #nonce = randomBytes(NONCE_BYTES).toString('base64');
  #signature: Buffer | null = null;

  constructor(keys: ScramKeys) {
    this.#keys = keys;
  }

  /** `client-first-message`. The server takes the name from the startup message. */
  first(): string {
    return `n,,${this.#bare()}`;
  }

  /**
   * `client-final-message`.
   * @param challenge `server-first-message`
   * @throws ScramRefused when the server has another verifier
   */
  final(challenge: string): string {
    const { iterations, salt, clientKey, storedKey, serverKey } = this.#keys;
    const [, nonce = '', itsSalt, itsIterations] = /^r=([^,]+),s=([^,]+),i=(\d+)$/.exec(challenge) ?? [];
    const isSame = itsSalt === salt && Number(itsIterations) === iterations;
    if (!isSame || !nonce.startsWith(this.#nonce)) throw new ScramRefused('the password has changed');
    const withoutProof = `c=biws,r=${nonce}`;
    const exchanged = [this.#bare(), challenge, withoutProof].join(',');
    this.#signature = hmac(serverKey, exchanged);
    const ofClient = hmac(storedKey, exchanged);
    const proof = clientKey.map((byte, at) => byte ^ (ofClient[at] ?? 0));
    return `${withoutProof},p=${Buffer.from(proof).toString('base64')}`;
  }

  /** @param last `server-final-message` @throws ScramRefused when the server does not know the password either */
  confirm(last: string): void {
    const given = base64(/^v=([\w+/=]+)$/.exec(last)?.[1] ?? '');
    const expected = this.#signature;
    if (!expected || given.length !== expected.length || !timingSafeEqual(given, expected))
      throw new ScramRefused('the server does not know the password');
  }

  #bare(): string {
    return `n=,r=${this.#nonce}`;
  }
}
