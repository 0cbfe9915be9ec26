import crypto, { type ScryptOptions } from 'node:crypto';
import { syncBuiltinESMExports } from 'node:module';

/**
 * Reports each call of `scrypt` in this process, of modules that have imported it by name too, and then runs it.
 * @returns ends it
 */
export function watchScrypt(report: (length: number, options: ScryptOptions) => void): () => void {
  const { scrypt } = crypto;
  const replace = (by: typeof scrypt) => {
    crypto.scrypt = by;
    syncBuiltinESMExports();
  };
  replace(((password, salt, length, options, done) => {
    report(length, options);
    scrypt(password, salt, length, options, done);
  }) as typeof scrypt);
  return () => replace(scrypt);
}
