/** How PostgreSQL names the address of a client that no line of `pg_hba.conf` admits. */
const REFUSED = /(?:no pg_hba\.conf entry for|pg_hba\.conf rejects connection for) host "([^"]+)"/;

/** The address in the message of a login that the database host has refused; null for any other text. */
export const refusedAddressIn = (text: string): string | null => REFUSED.exec(text)?.[1] ?? null;
