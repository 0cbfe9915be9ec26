import { z } from 'zod';

/** The route with which a host proves to an ACME server that its name is its own (RFC 8555 section 8.4). */
export const DNS_CHALLENGE_PATH = '/agent/v1/dns-challenge';

/** `typ` of the signed request, so that it passes as no other JWT of the host. */
export const DNS_CHALLENGE_TYPE = 'branchgate-dns-challenge+jwt';

/** Lifetime of a signed request, in seconds. */
export const DNS_CHALLENGE_LIFETIME = 60;

/**
 * Signed by the host's key, with the host's ID as issuer and host and port of the gateway as audience.
 * `value` is the content of the TXT record; null removes it.
 */
export const DnsChallengeClaims = z.object({
  value: z
    .string()
    .regex(/^[A-Za-z0-9_-]{43}$/)
    .nullable(),
});

export const DnsChallengeRequest = z
  .strictObject({
    host_id: z.uuid().toLowerCase(),
    token: z.string().max(2048).meta({ description: 'A JWT that the host has signed (EdDSA).' }),
  })
  .meta({
    id: 'DnsChallengeRequest',
    example: {
      host_id: '0b0e9d4c-6a5f-4a39-9b0a-0d6f3b1f7c21',
      token: 'eyJhbGciOiJFZERTQSJ9.e30.c2lnbmF0dXJl',
    },
  });

/** The name that the record was set for, which is that of the host. */
export const DnsChallengeReply = z
  .strictObject({ db_host: z.string().meta({ example: 'eu-1.db.example.com' }) })
  .meta({ id: 'DnsChallengeReply' });
