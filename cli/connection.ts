import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Schemas } from '../client/client.ts';
import { verifiedUrl } from '../shared/branch/verified-url.ts';

type Credentials = Schemas['Credentials'];

/** For a child whose environment names the authority: not every driver reads it from the URL. */
export const urlOfChild = (given: string, { ca_certificate: authority }: Credentials): string =>
  authority === null ? given : verifiedUrl(given, null);

/** Variables that would override those that a child gets, or contradict them. */
const OVERRIDING = [
  'PGPASSWORD',
  'PGHOSTADDR',
  'PGSERVICE',
  'PGSERVICEFILE',
  'PGSSLROOTCERT',
  'PGSSLMODE',
  'PGREQUIRESSL',
];

/** A folder for one command that only this user can read, with the password file and the authority. */
export class ConnectionFiles {
  #made: string | null = null;

  /** Made when the first file is written, so that a command that ends before that leaves nothing. */
  get #folder(): string {
    this.#made ??= mkdtempSync(join(tmpdir(), 'branchgate-'));
    return this.#made;
  }

  get passwordFile(): string {
    return join(this.#folder, 'pgpass');
  }

  /** Adds the login of a URL, so that its password is in no argument list. */
  addPassword(given: string): void {
    const { hostname, port, username, password } = new URL(given);
    const escaped = [
      hostname,
      port || '5432',
      '*',
      decodeURIComponent(username),
      decodeURIComponent(password),
    ];
    const fields = escaped.map((field) => field.replaceAll(/[\\:]/g, '\\$&'));
    appendFileSync(this.passwordFile, `${fields.join(':')}\n`, { mode: 0o600 });
  }

  /** The file with the authority to trust; null for public ones. */
  addAuthority({ ca_certificate: certificate }: Credentials): string | null {
    if (certificate === null) return null;
    const authority = join(this.#folder, 'ca.pem');
    writeFileSync(authority, certificate, { mode: 0o600 });
    return authority;
  }

  /** Node reads one file only, so it gets the inherited authorities too. */
  nodeAuthorities(authority: string): string {
    const inherited = process.env.NODE_EXTRA_CA_CERTS;
    if (!inherited) return authority;
    const file = join(this.#folder, 'node-ca.pem');
    writeFileSync(file, `${readFileSync(inherited, 'utf8')}\n${readFileSync(authority, 'utf8')}`, {
      mode: 0o600,
    });
    return file;
  }

  remove(): void {
    if (this.#made !== null) rmSync(this.#made, { recursive: true, force: true });
  }
}

/** What libpq needs to connect to a URL, its password excepted. */
export function libpqEnvironment(given: string): Record<string, string> {
  const url = new URL(given);
  return {
    PGHOST: url.hostname,
    PGPORT: url.port || '5432',
    PGUSER: decodeURIComponent(url.username),
    PGDATABASE: decodeURIComponent(url.pathname.slice(1)),
    PGSSLMODE: url.searchParams.get('sslmode') ?? 'require',
  };
}

/**
 * The environment of a child: both URLs, and what libpq and Node need for verified connections to the direct
 * one.
 */
export function childEnvironment(credentials: Credentials, files: ConnectionFiles): NodeJS.ProcessEnv {
  const direct = urlOfChild(credentials.direct_url, credentials);
  const pooled = urlOfChild(credentials.database_url, credentials);
  for (const url of [direct, pooled]) files.addPassword(url);
  const authority = files.addAuthority(credentials);
  const inherited = Object.entries(process.env).filter(([name]) => !OVERRIDING.includes(name));
  return {
    ...Object.fromEntries(inherited),
    DATABASE_URL: pooled,
    DIRECT_URL: direct,
    ...libpqEnvironment(direct),
    PGPASSFILE: files.passwordFile,
    ...(authority && { PGSSLROOTCERT: authority, NODE_EXTRA_CA_CERTS: files.nodeAuthorities(authority) }),
  };
}
