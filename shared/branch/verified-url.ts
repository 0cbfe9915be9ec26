/** Where the console and the command line save the authority of a host that has one of its own. */
export const AUTHORITY_FILE = 'branchgate-ca.pem';

/**
 * The URL of a connection that verifies the server. node-postgres, libpq and pgx read both parameters.
 * @param authorityFile null: the authority is a public one, or the client knows it from its environment
 */
export function verifiedUrl(given: string, authorityFile: string | null): string {
  const url = new URL(given);
  url.searchParams.set('sslmode', 'verify-full');
  if (authorityFile !== null) url.searchParams.set('sslrootcert', authorityFile);
  return url.href;
}
