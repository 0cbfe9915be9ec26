import { and, eq, gt, isNull, or, sql } from 'drizzle-orm';
import { base64url } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { EnrolmentRequest, PublicKey } from '../../shared/protocol/enrolment.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { Database } from '../database/database.ts';
import { hosts } from '../database/schema.ts';
import { hasOtherStandby, standbyTarget } from './pair.ts';

const TOKEN_BYTES = 32;
const TOKEN_LIFETIME_MS = 3_600_000;

const CERTIFICATES_MAX_CHARACTERS = 16_384;

/** One or more certificates, and nothing else: a private key by mistake is refused. */
export const CaCertificate = z
  .string()
  .max(CERTIFICATES_MAX_CHARACTERS)
  .regex(
    /^(?:\s*-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----)+\s*$/,
    'must be certificates in PEM format',
  )
  .nullable()
  .meta({
    description:
      "The certificate of the authority that signed the servers' certificate, in PEM format. Null: a public authority, which clients trust already.",
    example: null,
  });

const Port = z.int().min(1).max(65_535);

/** Where clients find the servers of a host, as in connection URLs. */
export const ServerAddress = {
  db_host: z.hostname().max(253).meta({ description: 'Public name or address for connection URLs.' }),
  direct_port: Port.meta({ description: 'Port of PostgreSQL.' }),
  pooled_port: Port.meta({ description: 'Port of PgBouncer.' }),
};

export const Region = z
  .string()
  .regex(/^[a-z0-9][a-z0-9-]{0,31}$/, 'lowercase letters, digits and hyphens, at most 32')
  .meta({ description: 'Where database hosts stand, as their operator calls it.', example: 'eu-central' });

/** Which projects a host gets. */
export const Placement = {
  region: Region.nullable().meta({
    description: 'New projects can name it. Null: only projects without a region are placed here.',
    example: 'eu-central',
  }),
  capacity: z.int().min(0).max(100_000).nullable().meta({
    description: 'The most projects that are placed here. Null: as many as the disk has room for.',
    example: 200,
  }),
};

/** A host that the platform operator registers. */
export const NewHost = z
  .strictObject({
    name: z.string().regex(/^[a-z0-9][a-z0-9-]{0,62}$/, 'lowercase letters, digits and hyphens, at most 63'),
    ...ServerAddress,
    direct_port: ServerAddress.direct_port.default(5432),
    pooled_port: ServerAddress.pooled_port.default(6432),
    ca_certificate: CaCertificate.default(null),
    region: Placement.region.default(null),
    capacity: Placement.capacity.default(null),
    standby_of: z.uuid().nullable().default(null).meta({
      description: 'A host whose data it is to have, so that it can take its place. Null: a host of its own.',
    }),
  })
  .meta({
    example: { name: 'eu-1', db_host: 'eu-1.db.example.com', direct_port: 5432, pooled_port: 6432 },
  });

/** A registered host with the one-time token for its agent. */
export const Registration = z
  .strictObject({
    host_id: z.uuid(),
    name: z.string().meta({ example: 'eu-1' }),
    enrolment_token: z.string().meta({ example: 'dGhlIG9uZS10aW1lIHRva2VuIG9mIGEgbmV3IGhvc3Q' }),
    join_command: z.string().meta({
      description: 'What to run on the machine as root, with the token.',
      example:
        'branchgate-agent join --gateway https://gateway.example.com --host eu-1 --token dGhlIG9uZS10aW1lIHRva2VuIG9mIGEgbmV3IGhvc3Q',
    }),
    expires_at: z.iso.datetime(),
    replaced: z.boolean().meta({
      description:
        'Whether the host was registered before: its details and its token are replaced, and its former command is void.',
    }),
  })
  .meta({ id: 'HostRegistration' });

/**
 * Registers a host and makes its one-time token. Until the host is enrolled, a repeated registration replaces
 * its details and its token.
 * @param gateway its address, for the command that uses the token
 * @returns or HOST_EXISTS; for a standby NOT_FOUND, HOST_NOT_PRIMARY, HOST_HAS_STANDBY
 */
export async function registerHost(
  db: Database,
  gateway: string,
  host: z.output<typeof NewHost>,
  now: Date,
): Promise<Result<z.output<typeof Registration>, Failure>> {
  if (host.standby_of !== null) {
    const target = await standbyTarget(db, host.name, host.standby_of);
    if (!target.ok) return target;
  }
  const token = newToken();
  const renewable = {
    dbHost: host.db_host,
    directPort: host.direct_port,
    pooledPort: host.pooled_port,
    caCertificate: host.ca_certificate,
    region: host.region,
    capacity: host.capacity,
    role: host.standby_of === null ? ('primary' as const) : ('standby' as const),
    standbyOf: host.standby_of,
    ...(await storedToken(token, now)),
  };
  const id = crypto.randomUUID();
  const [[row], refused] = await db.batch([
    db
      .insert(hosts)
      .values({ id, name: host.name, createdAt: now, ...renewable })
      .onConflictDoUpdate({ target: hosts.name, set: renewable, setWhere: isNull(hosts.publicKey) })
      .returning({ id: hosts.id }),
    // Another standby of the same host may have been registered meanwhile.
    db
      .delete(hosts)
      .where(and(eq(hosts.name, host.name), isNull(hosts.publicKey), hasOtherStandby(host)))
      .returning({ id: hosts.id }),
  ]);
  if (refused.length > 0) return fail({ code: 'HOST_HAS_STANDBY' });
  return row
    ? ok(toRegistration(gateway, { ...row, name: host.name }, token, now, row.id !== id))
    : fail({ code: 'HOST_EXISTS' });
}

/**
 * Makes a one-time token with which another key can be enrolled for the host, because its machine was lost.
 * The present key is valid until then.
 * @returns or NOT_FOUND
 */
export async function renewEnrolment(
  db: Database,
  gateway: string,
  hostId: string,
  now: Date,
): Promise<Result<z.output<typeof Registration>, Failure>> {
  const token = newToken();
  const [row] = await db
    .update(hosts)
    .set(await storedToken(token, now))
    .where(eq(hosts.id, hostId))
    .returning({ id: hosts.id, name: hosts.name });
  return row ? ok(toRegistration(gateway, row, token, now, true)) : fail({ code: 'NOT_FOUND' });
}

const newToken = () => base64url.encode(crypto.getRandomValues(new Uint8Array(TOKEN_BYTES)));

const expiryOf = (now: Date) => new Date(now.getTime() + TOKEN_LIFETIME_MS);

const storedToken = async (token: string, now: Date) => ({
  enrolmentTokenHash: await sha256(token),
  enrolmentExpiresAt: expiryOf(now),
});

const toRegistration = (
  gateway: string,
  host: { id: string; name: string },
  token: string,
  now: Date,
  replaced: boolean,
) => ({
  host_id: host.id,
  name: host.name,
  enrolment_token: token,
  join_command: `branchgate-agent join --gateway ${gateway} --host ${host.name} --token ${token}`,
  expires_at: expiryOf(now).toISOString(),
  replaced,
});

/**
 * Stores the public key of the host that the token belongs to. One statement decides, so of two keys one
 * wins. The same key gets the same response again until the token expires, because the first response may
 * have been lost.
 * @returns or UNAUTHENTICATED for a wrong, used or expired token
 */
export async function enrolHost(
  db: Database,
  request: EnrolmentRequest,
  now: Date,
): Promise<Result<{ host_id: string }, Failure>> {
  const publicKey = JSON.stringify(request.public_key);
  const isSameKey = eq(hosts.publicKey, publicKey);
  // A token that was made after the last enrolment is unused.
  const isUnused = sql`${hosts.enrolledAt} < ${hosts.enrolmentExpiresAt} - ${TOKEN_LIFETIME_MS}`;
  const [row] = await db
    .update(hosts)
    .set({
      publicKey,
      enrolledAt: sql`case when ${isSameKey} and not ${isUnused} then ${hosts.enrolledAt} else ${now.getTime()} end`,
    })
    .where(
      and(
        eq(hosts.enrolmentTokenHash, await sha256(request.enrolment_token)),
        gt(hosts.enrolmentExpiresAt, now),
        or(isNull(hosts.publicKey), isSameKey, isUnused),
      ),
    )
    .returning({ id: hosts.id });
  if (!row) return fail({ code: 'UNAUTHENTICATED', reason: 'wrong, used or expired enrolment token' });
  return ok({ host_id: row.id });
}

/** The public key of an enrolled host, for its handshake; null for any other ID. */
export async function publicKeyOf(db: Database, hostId: string): Promise<PublicKey | null> {
  const [row] = await db.select({ publicKey: hosts.publicKey }).from(hosts).where(eq(hosts.id, hostId));
  return row?.publicKey ? (JSON.parse(row.publicKey) as PublicKey) : null;
}
