import { importJWK, SignJWT } from 'jose';
import {
  DNS_CHALLENGE_LIFETIME,
  DNS_CHALLENGE_PATH,
  DNS_CHALLENGE_TYPE,
  DnsChallengeReply,
} from '../../shared/protocol/dns-challenge.ts';
import { gatewayAddress } from './gateway-address.ts';
import type { HostIdentity } from './identity.ts';

const REPLY_WITHIN_MS = 60_000;

/**
 * Has the gateway set the TXT record with which this host proves that its name is its own.
 * @param value null removes the record
 * @returns the name, as the gateway has it on record
 * @throws Error with the gateway's message
 */
export async function setDnsChallenge(
  gatewayUrl: string,
  identity: HostIdentity,
  value: string | null,
): Promise<string> {
  const { audience } = gatewayAddress(gatewayUrl);
  const token = await new SignJWT({ value })
    .setProtectedHeader({ alg: 'EdDSA', typ: DNS_CHALLENGE_TYPE })
    .setIssuer(identity.host_id)
    .setAudience(audience)
    .setIssuedAt()
    .setExpirationTime(`${DNS_CHALLENGE_LIFETIME}s`)
    .sign(await importJWK(identity.private_key, 'EdDSA'));
  const response = await fetch(new URL(DNS_CHALLENGE_PATH, gatewayUrl), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ host_id: identity.host_id, token }),
    redirect: 'error',
    signal: AbortSignal.timeout(REPLY_WITHIN_MS),
  });
  const reply: unknown = await response.json().catch(() => null);
  const reading = DnsChallengeReply.safeParse(reply);
  if (response.ok && reading.success) return reading.data.db_host;
  const { message } = (reply ?? {}) as { message?: string };
  throw new Error(message ?? `the gateway responded with status ${response.status}`);
}
