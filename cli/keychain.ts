import { createRequire } from 'node:module';

type Keyring = typeof import('@napi-rs/keyring');

const SERVICE = 'branchgate';

/**
 * The entry of a profile in the keychain of the operating system; null without the optional package. It is
 * loaded when it is needed only, and left out of the bundle, because it is native. On Linux never the
 * kernel's keyring, which ends with the session.
 */
function entryOf(profile: string): InstanceType<Keyring['Entry']> | null {
  try {
    const { Entry } = createRequire(import.meta.url)('@napi-rs/keyring') as Keyring;
    return new Entry(SERVICE, profile, { linux: { store: 'secret-service' } });
  } catch {
    return null;
  }
}

/**
 * @returns whether the keychain has stored it: it may be locked, or the machine may have none. Otherwise
 *   nothing is left in it, as far as it can be opened.
 */
export function storeInKeychain(profile: string, secret: string): boolean {
  try {
    const entry = entryOf(profile);
    entry?.setPassword(secret);
    if (entry?.getPassword() === secret) return true;
  } catch {
    // It may have been written and be unreadable.
  }
  removeFromKeychain(profile);
  return false;
}

/** Null if the keychain has none, or cannot be opened. */
export function readFromKeychain(profile: string): string | null {
  try {
    return entryOf(profile)?.getPassword() ?? null;
  } catch {
    return null;
  }
}

export function removeFromKeychain(profile: string): void {
  try {
    entryOf(profile)?.deletePassword();
  } catch {
    // It is not there, or the keychain is locked: the tokens expire by themselves.
  }
}
