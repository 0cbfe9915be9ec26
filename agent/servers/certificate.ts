import { createPrivateKey, X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';

const DAY_MS = 86_400_000;

/** From here on `doctor` and the record of the host say that the certificate ends. */
export const ENDS_SOON_DAYS = 21;

/** When the first certificate of a PEM file ends. @throws Error when the text is no certificate */
export const endOfCertificate = (pem: string): Date => new X509Certificate(pem).validToDate;

/** When the first of these certificates ends; null if none can be read. @param paths of PEM files */
export async function endOfCertificates(paths: readonly string[]): Promise<Date | null> {
  const ends = await Promise.all(
    paths.map(async (path) => {
      try {
        return endOfCertificate(await readFile(path, 'utf8'));
      } catch {
        return null;
      }
    }),
  );
  return ends.reduce((first, end) => (first === null || (end !== null && end < first) ? end : first), null);
}

const NAMES_MAX = 100;

/** The DNS names that every one of these certificates has; none if one cannot be read. @param paths of PEM files */
export async function namesOfCertificates(paths: readonly string[]): Promise<string[]> {
  const [first = [], ...others] = await Promise.all(paths.map(namesOf));
  return first.filter((name) => others.every((names) => names.includes(name))).slice(0, NAMES_MAX);
}

async function namesOf(path: string): Promise<string[]> {
  try {
    const { subjectAltName = '' } = new X509Certificate(await readFile(path, 'utf8'));
    return subjectAltName
      .split(', ')
      .flatMap((name) => (name.startsWith('DNS:') ? [name.slice(4).toLowerCase()] : []));
  } catch {
    return [];
  }
}

export const daysUntil = (end: Date): number => Math.floor((end.getTime() - Date.now()) / DAY_MS);

/** Why both servers would not start with this pair; null if they would. */
export function faultOfPair(certificate: string, key: string): string | null {
  const now = Date.now();
  let leaf: X509Certificate;
  try {
    leaf = new X509Certificate(certificate);
  } catch {
    return 'the certificate is not in PEM form: give the file with the whole chain, for instance fullchain.pem';
  }
  try {
    if (!leaf.checkPrivateKey(createPrivateKey(key)))
      return 'the key does not belong to the certificate: give the key that it was requested with';
  } catch {
    return 'the key is not in PEM form, or has a passphrase: give one without, because servers cannot ask for it';
  }
  if (leaf.validFromDate.getTime() > now)
    return `the certificate is valid only from ${leaf.validFrom} on: check the clock of this machine`;
  if (leaf.validToDate.getTime() <= now) return `the certificate ended on ${leaf.validTo}: renew it`;
  return null;
}
