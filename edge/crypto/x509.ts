import { toBase64 } from './seal.ts';

/**
 * X.509 certificates (RFC 5280) in DER (X.690): those of one authority and of the servers that it vouches
 * for, with keys on the curve P-256. It writes and never reads; a library that does both would add 16 to 60
 * KB to the Worker.
 */

const ECDSA = { name: 'ECDSA', namedCurve: 'P-256' } as const;
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' } as const;
const DAY_MS = 86_400_000;
const AUTHORITY_DAYS = 20 * 365;
const SERVER_DAYS = 90;
/** A clock of a client may be behind. */
const BEGINS_DAYS_BEFORE = 1;
/** The point of a P-256 key at the end of its `SubjectPublicKeyInfo`. */
const POINT_BYTES = 65;
const KEY_ID_BYTES = 20;

const TAG = {
  boolean: 0x01,
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  oid: 0x06,
  utf8String: 0x0c,
  utcTime: 0x17,
  generalizedTime: 0x18,
  sequence: 0x30,
  set: 0x31,
} as const;
/** A primitive and a constructed element with the context's number `n`. */
const context = (n: number) => 0x80 | n;
const explicit = (n: number) => 0xa0 | n;

type Bytes = Uint8Array<ArrayBuffer>;
const bytes = (...values: number[]): Bytes => Uint8Array.from(values);
const ascii = (text: string): Bytes => bytes(...new TextEncoder().encode(text));

function joined(parts: readonly Bytes[]): Bytes {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Digits of `n` in base 2^`bits`, the highest first. */
const digits = (n: number, bits: number): number[] =>
  n < 2 ** bits ? [n] : [...digits(Math.floor(n / 2 ** bits), bits), n % 2 ** bits];

function element(tag: number, ...contents: Bytes[]): Bytes {
  const content = joined(contents);
  const length = digits(content.length, 8);
  const isShort = content.length < 0x80;
  return joined([bytes(tag, ...(isShort ? length : [0x80 | length.length, ...length])), content]);
}

const sequence = (...contents: Bytes[]) => element(TAG.sequence, ...contents);

function oid(text: string): Bytes {
  const [first = 0, second = 0, ...rest] = text.split('.').map(Number);
  const arcs = [first * 40 + second, ...rest].flatMap((arc) =>
    digits(arc, 7).map((digit, at, all) => (at < all.length - 1 ? digit | 0x80 : digit)),
  );
  return element(TAG.oid, bytes(...arcs));
}

/** A number without a sign, of any length. */
function unsigned(value: Bytes): Bytes {
  const first = value.findIndex((byte) => byte !== 0);
  const short = first < 0 ? bytes(0) : value.slice(first);
  return element(TAG.integer, ...((short[0] ?? 0) >= 0x80 ? [bytes(0), short] : [short]));
}

/** @param unused number of bits at the end that do not count */
const bitString = (content: Bytes, unused = 0) => element(TAG.bitString, bytes(unused), content);

/** RFC 5280 section 4.1.2.5: until 2049 as `UTCTime`. */
function time(date: Date): Bytes {
  const text = `${date.toISOString().replace(/[-:T]|\..*$/g, '')}Z`;
  return date.getUTCFullYear() < 2050
    ? element(TAG.utcTime, ascii(text.slice(2)))
    : element(TAG.generalizedTime, ascii(text));
}

const ECDSA_WITH_SHA256 = sequence(oid('1.2.840.10045.4.3.2'));
const COMMON_NAME = oid('2.5.4.3');

const nameOf = (text: string) =>
  sequence(element(TAG.set, sequence(COMMON_NAME, element(TAG.utf8String, ascii(text)))));

const extension = (id: string, content: Bytes, isCritical = false) =>
  sequence(
    oid(id),
    ...(isCritical ? [element(TAG.boolean, bytes(0xff))] : []),
    element(TAG.octetString, content),
  );

const subjectKeyId = (keyId: Bytes) => extension('2.5.29.14', element(TAG.octetString, keyId));
const authorityKeyId = (keyId: Bytes) => extension('2.5.29.35', sequence(element(context(0), keyId)));

/** Signs certificates of its own only: no authority below it. */
const ONLY_AUTHORITY = [
  extension('2.5.29.19', sequence(element(TAG.boolean, bytes(0xff)), element(TAG.integer, bytes(0))), true),
  // keyCertSign and cRLSign.
  extension('2.5.29.15', bitString(bytes(0x06), 1), true),
];

const ONLY_SERVER = [
  extension('2.5.29.19', sequence(), true),
  // digitalSignature.
  extension('2.5.29.15', bitString(bytes(0x80), 7), true),
  extension('2.5.29.37', sequence(oid('1.3.6.1.5.5.7.3.1'))),
];

const IPV4 = /^\d{1,3}(?:\.\d{1,3}){3}$/;

/** Whether the address of a host is an IP address, of which no name can be proven. */
export const isIpAddress = (address: string): boolean => IPV4.test(address);

/** The addresses as alternative names of the subject: IP addresses (7) or DNS names (2). */
const alternativeNames = (addresses: readonly string[]) =>
  extension(
    '2.5.29.17',
    sequence(
      ...addresses.map((address) =>
        isIpAddress(address)
          ? element(context(7), bytes(...address.split('.').map(Number)))
          : element(context(2), ascii(address)),
      ),
    ),
  );

interface PublicKeyForm {
  spki: Bytes;
  /** RFC 7093, method 1. */
  id: Bytes;
}

async function publicForm({ crv, kty, x, y }: JsonWebKey): Promise<PublicKeyForm> {
  const key = await crypto.subtle.importKey('jwk', { crv, kty, x, y } as JsonWebKey, ECDSA, true, ['verify']);
  const spki = new Uint8Array((await crypto.subtle.exportKey('spki', key)) as ArrayBuffer);
  const digest = await crypto.subtle.digest('SHA-256', spki.slice(-POINT_BYTES));
  return { spki, id: new Uint8Array(digest).slice(0, KEY_ID_BYTES) };
}

interface Content {
  issuer: string;
  subject: string;
  spki: Bytes;
  days: number;
  extensions: Bytes[];
}

/** @param key private, as a JWK @returns the certificate in PEM form */
async function sign(key: JsonWebKey, content: Content, now: Date): Promise<string> {
  const { issuer, subject, spki, days, extensions } = content;
  const serial = crypto.getRandomValues(new Uint8Array(16));
  const from = new Date(now.getTime() - BEGINS_DAYS_BEFORE * DAY_MS);
  const until = new Date(now.getTime() + days * DAY_MS);
  const toSign = sequence(
    element(explicit(0), element(TAG.integer, bytes(2))),
    unsigned(serial),
    ECDSA_WITH_SHA256,
    nameOf(issuer),
    sequence(time(from), time(until)),
    nameOf(subject),
    spki,
    element(explicit(3), sequence(...extensions)),
  );
  const signer = await crypto.subtle.importKey('jwk', key, ECDSA, false, ['sign']);
  const signature = new Uint8Array(await crypto.subtle.sign(SIGNATURE, signer, toSign));
  const half = signature.length / 2;
  const asDer = sequence(unsigned(signature.slice(0, half)), unsigned(signature.slice(half)));
  const der = sequence(toSign, ECDSA_WITH_SHA256, bitString(asDer));
  const lines = toBase64(der).match(/.{1,64}/g) ?? [];
  return ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n');
}

const authorityName = ({ id }: PublicKeyForm) =>
  `branchgate authority ${[...id.slice(0, 4)].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`;

/** A new authority for 20 years: its certificate (PEM) and its private key. */
export async function makeAuthority(now: Date): Promise<{ certificate: string; key: JsonWebKey }> {
  const pair = (await crypto.subtle.generateKey(ECDSA, true, ['sign', 'verify'])) as CryptoKeyPair;
  const key = (await crypto.subtle.exportKey('jwk', pair.privateKey)) as JsonWebKey;
  const form = await publicForm(key);
  const name = authorityName(form);
  const extensions = [...ONLY_AUTHORITY, subjectKeyId(form.id)];
  const content = { issuer: name, subject: name, spki: form.spki, days: AUTHORITY_DAYS, extensions };
  return { certificate: await sign(key, content, now), key };
}

/**
 * A certificate of 90 days for the server at these addresses.
 * @param authority the private key of the authority
 * @param addresses DNS names or IPv4 addresses; the first one is the subject
 * @returns in PEM form
 * @throws Error if the server's key is no point of the curve
 */
export async function certifyServer(
  authority: JsonWebKey,
  addresses: readonly [string, ...string[]],
  serverKey: JsonWebKey,
  now: Date,
): Promise<string> {
  const [issuer, server] = await Promise.all([publicForm(authority), publicForm(serverKey)]);
  const extensions = [
    ...ONLY_SERVER,
    alternativeNames(addresses),
    subjectKeyId(server.id),
    authorityKeyId(issuer.id),
  ];
  return sign(
    authority,
    {
      issuer: authorityName(issuer),
      subject: addresses[0],
      spki: server.spki,
      days: SERVER_DAYS,
      extensions,
    },
    now,
  );
}
