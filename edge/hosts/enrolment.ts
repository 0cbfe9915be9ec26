import { and, eq, gt, isNull, or, sql } from 'drizzle-orm';
import { base64url } from 'jose';
import { z } from 'zod';
import type { EnrolmentRequest, PublicKey } from '../../shared/protocol/enrolment.ts';
import type { Database } from '../database/database.ts';
import { hosts } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { sha256 } from '../sha256.ts';

const TOKEN_BYTES = 32;
const TOKEN_LIFETIME_MS = 3_600_000;

const Port = z.int().min(1).max(65_535);

/** What the platform says of a new host. */
export const NewHost = z
  .strictObject({
    name: z.string().regex(/^[a-z0-9][a-z0-9-]{0,62}$/, 'lowercase letters, digits and hyphens, at most 63'),
    db_host: z
      .hostname()
      .max(253)
      .meta({ description: 'Public name or address that stands in connection URLs.' }),
    direct_port: Port,
    pooled_port: Port,
  })
  .meta({
    example: { name: 'eu-1', db_host: 'eu-1.db.example.com', direct_port: 5432, pooled_port: 6432 },
  });

/** A registered host and what its agent enrols with. */
export const Registration = z
  .strictObject({
    host_id: z.uuid(),
    name: z.string().meta({ example: 'eu-1' }),
    enrolment_token: z.string().meta({ example: 'dGhlIG9uZS10aW1lIHRva2VuIG9mIGEgbmV3IGhvc3Q' }),
    expires_at: z.iso.datetime(),
  })
  .meta({ id: 'HostRegistration' });

/**
 * Registers a host and makes its one-time token. Asked again before the host is enrolled, it replaces what was
 * said of the host, and the token.
 * @throws ApiError HOST_EXISTS
 */
export async function registerHost(
  db: Database,
  host: z.output<typeof NewHost>,
  now: Date,
): Promise<z.output<typeof Registration>> {
  const token = base64url.encode(crypto.getRandomValues(new Uint8Array(TOKEN_BYTES)));
  const expiresAt = new Date(now.getTime() + TOKEN_LIFETIME_MS);
  const renewable = {
    dbHost: host.db_host,
    directPort: host.direct_port,
    pooledPort: host.pooled_port,
    enrolmentTokenHash: await sha256(token),
    enrolmentExpiresAt: expiresAt,
  };
  const [row] = await db
    .insert(hosts)
    .values({ id: crypto.randomUUID(), name: host.name, createdAt: now, ...renewable })
    .onConflictDoUpdate({ target: hosts.name, set: renewable, setWhere: isNull(hosts.publicKey) })
    .returning({ id: hosts.id });
  if (!row) throw new ApiError('HOST_EXISTS');
  return { host_id: row.id, name: host.name, enrolment_token: token, expires_at: expiresAt.toISOString() };
}

/**
 * Gives the host that holds the token its key. One statement decides, so of two keys one wins; the same key
 * again gets the same answer while the token lasts, because the first answer may have been lost.
 * @throws ApiError UNAUTHENTICATED: wrong, used or expired token
 */
export async function enrolHost(
  db: Database,
  request: EnrolmentRequest,
  now: Date,
): Promise<{ host_id: string }> {
  const publicKey = JSON.stringify(request.public_key);
  const [row] = await db
    .update(hosts)
    .set({ publicKey, enrolledAt: sql`coalesce(${hosts.enrolledAt}, ${now.getTime()})` })
    .where(
      and(
        eq(hosts.enrolmentTokenHash, await sha256(request.enrolment_token)),
        gt(hosts.enrolmentExpiresAt, now),
        or(isNull(hosts.publicKey), eq(hosts.publicKey, publicKey)),
      ),
    )
    .returning({ id: hosts.id });
  if (!row) throw new ApiError('UNAUTHENTICATED', undefined, 'wrong, used or expired enrolment token');
  return { host_id: row.id };
}

/** The key an enrolled host answers the handshake with; null for any other id. */
export async function publicKeyOf(db: Database, hostId: string): Promise<PublicKey | null> {
  const [row] = await db.select({ publicKey: hosts.publicKey }).from(hosts).where(eq(hosts.id, hostId));
  return row?.publicKey ? (JSON.parse(row.publicKey) as PublicKey) : null;
}
