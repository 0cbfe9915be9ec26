import { and, eq, isNull, or } from 'drizzle-orm';
import { importJWK, jwtVerify } from 'jose';
import type { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { wildcardOf } from '../../shared/project/dns-name.ts';
import type { PublicKey } from '../../shared/protocol/enrolment.ts';
import {
  CERTIFICATE_TYPE,
  CertificateClaims,
  type CertificateReply,
  DNS_CHALLENGE_TYPE,
  DnsChallengeClaims,
  type DnsChallengeReply,
  SIGNED_REQUEST_LIFETIME,
  type SignedRequest,
} from '../../shared/protocol/host-certificate.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { seal, unseal } from '../crypto/seal.ts';
import { certifyServer, isIpAddress, makeAuthority } from '../crypto/x509.ts';
import { type Database, writeThenRead } from '../database/database.ts';
import { hostAuthority, hosts } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { type DnsSettings, type DnsZone, dnsZone } from './dns-records.ts';

/** Tolerated clock difference of a host, in seconds, as in the handshake of its link. */
const CLOCK_TOLERANCE = 300;
/** Cloudflare's lowest time to live. */
const TTL_SECONDS = 60;

type HostRow = typeof hosts.$inferSelect;

/** A request that came in, and what it was sent to. */
interface Received {
  request: z.output<typeof SignedRequest>;
  /** Host and port that the request was sent to. */
  audience: string;
  now: Date;
}

/**
 * Sets or removes the TXT record with which a host gets a certificate for its own name, and for no other: the
 * name is that of its record. No record proves an IP address.
 * @returns or UNAUTHENTICATED, DNS_NOT_CONFIGURED, DNS_UNAVAILABLE
 */
export async function setDnsChallenge(
  db: Database,
  settings: DnsSettings,
  received: Received,
): Promise<Result<z.output<typeof DnsChallengeReply>, Failure>> {
  const signed = await verifiedRequest(db, received, DNS_CHALLENGE_TYPE, DnsChallengeClaims);
  if (!signed.ok) return signed;
  const { host, claims } = signed.value;
  const zone = dnsZone(settings);
  if (!zone || isIpAddress(host.dbHost)) return fail({ code: 'DNS_NOT_CONFIGURED' });
  try {
    await setTxtRecord(zone, host, claims.value);
  } catch (error) {
    return fail({ code: 'DNS_UNAVAILABLE', reason: String(error) });
  }
  return ok({ db_host: host.dbHost });
}

/** Replaces the record that the gateway has made for the name of this host, and no other. */
async function setTxtRecord(zone: DnsZone, { id, dbHost }: HostRow, value: string | null): Promise<void> {
  const name = `_acme-challenge.${dbHost}`;
  const comment = `branchgate host ${id}`;
  const present = await zone.list({ type: 'TXT', name });
  for (const record of present) if (record.comment === comment) await zone.remove(record.id);
  if (value !== null) await zone.add({ type: 'TXT', name, content: `"${value}"`, ttl: TTL_SECONDS, comment });
}

/**
 * Issues a certificate of the gateway's own authority for the address of a host and the names of its projects,
 * and gives its clients the authority with their credentials.
 * @returns or UNAUTHENTICATED, HOST_HAS_AUTHORITY
 */
export async function issueCertificate(
  db: Database,
  { CREDENTIAL_KEYS: keys, DB_DOMAIN: domain }: Pick<Settings, 'CREDENTIAL_KEYS' | 'DB_DOMAIN'>,
  received: Received,
): Promise<Result<z.output<typeof CertificateReply>, Failure>> {
  const { now } = received;
  const signed = await verifiedRequest(db, received, CERTIFICATE_TYPE, CertificateClaims);
  if (!signed.ok) return signed;
  const { host, claims } = signed.value;
  const authority = await authorityOf(db, keys, now);
  const names = [host.dbHost, ...(domain === undefined ? [] : [wildcardOf(domain)])] as const;
  const issued = await certifyServer(authority.key, names, claims.server_key, now).catch(() => null);
  if (issued === null) return refused('the server key is no point of P-256');
  const caCertificate = authority.certificate;
  // First the authority of the clients: they would refuse a certificate whose authority they do not know.
  const isFree = or(isNull(hosts.caCertificate), eq(hosts.caCertificate, caCertificate));
  const [trusting] = await db
    .update(hosts)
    .set({ caCertificate })
    .where(and(eq(hosts.id, host.id), isFree))
    .returning({ db_host: hosts.dbHost });
  return trusting ? ok({ ...trusting, certificate: issued }) : fail({ code: 'HOST_HAS_AUTHORITY' });
}

const AUTHORITY_ID = 'gateway';
const sealContext = ['host_authority', AUTHORITY_ID];

/** The authority of this gateway; the first request makes it, and of two at the same time one wins. */
async function authorityOf(db: Database, keys: Settings['CREDENTIAL_KEYS'], now: Date) {
  const reading = db.select().from(hostAuthority).where(eq(hostAuthority.id, AUTHORITY_ID));
  let [row] = await reading;
  if (!row) {
    const { certificate, key } = await makeAuthority(now);
    const { keyId, sealed: sealedKey } = await seal(keys, sealContext, JSON.stringify(key));
    const made = { id: AUTHORITY_ID, certificate, keyId, sealedKey, createdAt: now };
    [row] = await writeThenRead(db, [db.insert(hostAuthority).values(made).onConflictDoNothing()], reading);
  }
  if (!row) throw new Error('the authority that was stored is gone');
  const { certificate, keyId, sealedKey: sealed } = row;
  return { certificate, key: JSON.parse(await unseal(keys, sealContext, { keyId, sealed })) as JsonWebKey };
}

const refused = (reason: string) => fail({ code: 'UNAUTHENTICATED', reason } as const);

/** The claims of a request that this host has signed for this gateway, just now. @returns or UNAUTHENTICATED */
export async function verifiedRequest<Claims>(
  db: Database,
  { request: { host_id: issuer, token }, audience, now }: Received,
  typ: string,
  claims: z.ZodType<Claims>,
): Promise<Result<{ host: HostRow; claims: Claims }, Failure>> {
  const [host] = await db.select().from(hosts).where(eq(hosts.id, issuer));
  if (!host?.publicKey) return refused('no enrolled host');
  try {
    const key = await importJWK(JSON.parse(host.publicKey) as PublicKey, 'EdDSA');
    const { payload } = await jwtVerify(token, key, {
      algorithms: ['EdDSA'],
      typ,
      issuer,
      audience,
      currentDate: now,
      maxTokenAge: SIGNED_REQUEST_LIFETIME,
      clockTolerance: CLOCK_TOLERANCE,
      requiredClaims: ['exp'],
    });
    return ok({ host, claims: claims.parse(payload) });
  } catch {
    return refused('not signed by the key of the host');
  }
}
