import { importJWK, type JWK, type JWTPayload, SignJWT } from 'jose';
import type { z } from 'zod';
import {
  CERTIFICATE_PATH,
  CERTIFICATE_TYPE,
  CertificateReply,
  DNS_CHALLENGE_PATH,
  DNS_CHALLENGE_TYPE,
  DnsChallengeReply,
  SIGNED_REQUEST_LIFETIME,
} from '../../shared/protocol/host-certificate.ts';
import { gatewayAddress } from './gateway-address.ts';
import type { HostIdentity } from './identity.ts';

const REPLY_WITHIN_MS = 60_000;

/** The gateway refused a request of this host. */
export class GatewayRefusal extends Error {
  /** Of the gateway's failures; null: it did not answer as a gateway does. */
  readonly code: string | null;

  constructor(code: string | null, message: string) {
    super(message);
    this.name = 'GatewayRefusal';
    this.code = code;
  }
}

/**
 * Has the gateway set the TXT record with which this host proves that its name is its own.
 * @param value null removes the record
 * @returns the name, as the gateway has it on record
 * @throws GatewayRefusal with the gateway's message
 */
export async function setDnsChallenge(
  gatewayUrl: string,
  identity: HostIdentity,
  value: string | null,
): Promise<string> {
  const request = { path: DNS_CHALLENGE_PATH, typ: DNS_CHALLENGE_TYPE, claims: { value } };
  return (await signedRequest(gatewayUrl, identity, request, DnsChallengeReply)).db_host;
}

/**
 * Gets a certificate of the gateway's own authority for the address of this host.
 * @param serverKey public, on the curve P-256
 * @returns the certificate in PEM form, and the address
 * @throws GatewayRefusal with the gateway's message
 */
export const requestCertificate = (gatewayUrl: string, identity: HostIdentity, serverKey: JWK) =>
  signedRequest(
    gatewayUrl,
    identity,
    { path: CERTIFICATE_PATH, typ: CERTIFICATE_TYPE, claims: { server_key: serverKey } },
    CertificateReply,
  );

/**
 * Sends a request that the key of this host has signed.
 * @throws GatewayRefusal with the gateway's message
 */
export async function signedRequest<Reply>(
  gatewayUrl: string,
  identity: HostIdentity,
  {
    path,
    typ,
    claims,
    within = REPLY_WITHIN_MS,
  }: { path: string; typ: string; claims: JWTPayload; within?: number },
  replies: z.ZodType<Reply>,
): Promise<Reply> {
  const { audience } = gatewayAddress(gatewayUrl);
  const token = await new SignJWT(claims)
    .setProtectedHeader({ alg: 'EdDSA', typ })
    .setIssuer(identity.host_id)
    .setAudience(audience)
    .setIssuedAt()
    .setExpirationTime(`${SIGNED_REQUEST_LIFETIME}s`)
    .sign(await importJWK(identity.private_key, 'EdDSA'));
  const response = await fetch(new URL(path, gatewayUrl), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ host_id: identity.host_id, token }),
    redirect: 'error',
    signal: AbortSignal.timeout(within),
  });
  const reply: unknown = await response.json().catch(() => null);
  const reading = replies.safeParse(reply);
  if (response.ok && reading.success) return reading.data;
  const { error: code = null, message } = (reply ?? {}) as { error?: string; message?: string };
  throw new GatewayRefusal(code, message ?? `the gateway responded with status ${response.status}`);
}
