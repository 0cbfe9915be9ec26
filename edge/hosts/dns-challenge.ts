import { eq } from 'drizzle-orm';
import { importJWK, jwtVerify } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import {
  DNS_CHALLENGE_LIFETIME,
  DNS_CHALLENGE_TYPE,
  DnsChallengeClaims,
  type DnsChallengeReply,
  type DnsChallengeRequest,
} from '../../shared/protocol/dns-challenge.ts';
import type { PublicKey } from '../../shared/protocol/enrolment.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Database } from '../database/database.ts';
import { hosts } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

/** Tolerated clock difference of a host, in seconds, as in the handshake of its link. */
const CLOCK_TOLERANCE = 300;
const REQUEST_MS = 10_000;
/** Cloudflare's lowest time to live. */
const TTL_SECONDS = 60;

type DnsSettings = Pick<Settings, 'DNS_API_TOKEN' | 'DNS_API_URL' | 'DNS_ZONE_ID'>;

/**
 * Sets or removes the TXT record with which a host gets a certificate for its own name, and for no other: the
 * name is that of its record.
 * @param audience host and port that the request was sent to
 * @returns or UNAUTHENTICATED, DNS_NOT_CONFIGURED, DNS_UNAVAILABLE
 */
export async function setDnsChallenge(
  db: Database,
  settings: DnsSettings,
  request: z.output<typeof DnsChallengeRequest>,
  audience: string,
  now: Date,
): Promise<Result<z.output<typeof DnsChallengeReply>, Failure>> {
  const { host_id: hostId } = request;
  const [host] = await db.select().from(hosts).where(eq(hosts.id, hostId));
  const value = host?.publicKey
    ? await signedValue(request, JSON.parse(host.publicKey), audience, now)
    : undefined;
  if (!host || value === undefined)
    return fail({ code: 'UNAUTHENTICATED', reason: 'no enrolled host, or not signed by its key' });
  const { DNS_API_TOKEN: token, DNS_ZONE_ID: zone } = settings;
  if (token === undefined || zone === undefined) return fail({ code: 'DNS_NOT_CONFIGURED' });
  const records = new TxtRecords({ ...settings, token, zone }, hostId, `_acme-challenge.${host.dbHost}`);
  try {
    await records.replace(value);
  } catch (error) {
    return fail({ code: 'DNS_UNAVAILABLE', reason: String(error) });
  }
  return ok({ db_host: host.dbHost });
}

/** @returns undefined unless this host has signed it for this gateway, just now */
async function signedValue(
  { host_id: issuer, token }: z.output<typeof DnsChallengeRequest>,
  key: PublicKey,
  audience: string,
  now: Date,
): Promise<string | null | undefined> {
  try {
    const { payload } = await jwtVerify(token, await importJWK(key, 'EdDSA'), {
      algorithms: ['EdDSA'],
      typ: DNS_CHALLENGE_TYPE,
      issuer,
      audience,
      currentDate: now,
      maxTokenAge: DNS_CHALLENGE_LIFETIME,
      clockTolerance: CLOCK_TOLERANCE,
      requiredClaims: ['exp'],
    });
    return DnsChallengeClaims.parse(payload).value;
  } catch {
    return undefined;
  }
}

const Listed = z.object({
  success: z.literal(true),
  result: z.array(z.object({ id: z.string(), comment: z.string().nullish() })),
});

/** Records of one name in a zone of Cloudflare. */
class TxtRecords {
  readonly #url: string;
  readonly #token: string;
  readonly #name: string;
  /** Marks the records that the gateway has made, which alone it removes. */
  readonly #comment: string;

  constructor(
    { DNS_API_URL, token, zone }: Pick<DnsSettings, 'DNS_API_URL'> & { token: string; zone: string },
    hostId: string,
    name: string,
  ) {
    this.#url = `${DNS_API_URL}/zones/${zone}/dns_records`;
    this.#token = token;
    this.#name = name;
    this.#comment = `branchgate host ${hostId}`;
  }

  /** @throws Error if Cloudflare refuses, for instance because the name is not in the zone */
  async replace(value: string | null): Promise<void> {
    const query = new URLSearchParams({ type: 'TXT', name: this.#name, per_page: '100' });
    const { result } = Listed.parse(await this.#call('GET', `?${query}`));
    for (const { id } of result.filter(({ comment }) => comment === this.#comment))
      await this.#call('DELETE', `/${id}`);
    if (value === null) return;
    const record = { type: 'TXT', name: this.#name, content: `"${value}"`, ttl: TTL_SECONDS };
    await this.#call('POST', '', { ...record, comment: this.#comment });
  }

  async #call(method: string, path: string, body?: object): Promise<unknown> {
    const response = await fetch(this.#url + path, {
      method,
      headers: { Authorization: `Bearer ${this.#token}`, 'Content-Type': 'application/json' },
      signal: AbortSignal.timeout(REQUEST_MS),
      ...(body && { body: JSON.stringify(body) }),
    });
    const reply: unknown = await response.json().catch(() => null);
    if (!response.ok)
      throw new Error(`${method} of a DNS record: ${response.status} ${JSON.stringify(reply)}`);
    return reply;
  }
}
