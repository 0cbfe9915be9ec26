import { z } from 'zod';

/**
 * How an enrolled host gets a certificate for its own address: by ACME, for which the gateway sets a record
 * of its name (RFC 8555 section 8.4), or by the gateway's own authority. Both requests are JWTs that the
 * host's key has signed (EdDSA), with the host's ID as issuer and host and port of the gateway as audience.
 */

export const DNS_CHALLENGE_PATH = '/agent/v1/dns-challenge';
export const CERTIFICATE_PATH = '/agent/v1/certificate';

/** `typ` of the signed requests, so that each passes as no other JWT of the host. */
export const DNS_CHALLENGE_TYPE = 'branchgate-dns-challenge+jwt';
export const CERTIFICATE_TYPE = 'branchgate-certificate+jwt';

/** Lifetime of a signed request, in seconds. */
export const SIGNED_REQUEST_LIFETIME = 60;

/** `value` is the content of the TXT record; null removes it. */
export const DnsChallengeClaims = z.object({
  value: z
    .string()
    .regex(/^[A-Za-z0-9_-]{43}$/)
    .nullable(),
});

const Coordinate = z.string().regex(/^[A-Za-z0-9_-]{43}$/);

/** `server_key` is the public half of the key that both servers of the host use, on the curve P-256. */
export const CertificateClaims = z.object({
  server_key: z.object({
    kty: z.literal('EC'),
    crv: z.literal('P-256'),
    x: Coordinate,
    y: Coordinate,
  }),
});

export const SignedRequest = z
  .strictObject({
    host_id: z.uuid().toLowerCase(),
    token: z.string().max(2048).meta({ description: 'A JWT that the host has signed (EdDSA).' }),
  })
  .meta({
    id: 'SignedHostRequest',
    example: {
      host_id: '0b0e9d4c-6a5f-4a39-9b0a-0d6f3b1f7c21',
      token: 'eyJhbGciOiJFZERTQSJ9.e30.c2lnbmF0dXJl',
    },
  });

/** The name that the record was set for, which is that of the host. */
export const DnsChallengeReply = z
  .strictObject({ db_host: z.string().meta({ example: 'eu-1.db.example.com' }) })
  .meta({ id: 'DnsChallengeReply' });

/** The certificate for the host's address, in PEM form. */
export const CertificateReply = z
  .strictObject({
    db_host: z.string().meta({ example: '192.0.2.7' }),
    certificate: z
      .string()
      .meta({ example: '-----BEGIN CERTIFICATE-----\nMIIB…\n-----END CERTIFICATE-----\n' }),
  })
  .meta({ id: 'HostCertificate' });
