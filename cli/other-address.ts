import { request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';
import { isIP } from 'node:net';

/** A family that a network drops without a word costs a command no more than this. */
const ANSWER_WITHIN_MS = 1_000;
const RESPONSE_BYTES_MAX = 4_096;

interface Address {
  address: string | null;
  /** The gateway by a name that is reached over one family only. */
  ipv4_url: string | null;
  ipv6_url: string | null;
}

/** The address that a request over this family comes from. @param family 0: whichever the system prefers */
const ask = (url: string, family: 0 | 4 | 6) =>
  new Promise<Address>((resolve, reject) => {
    const address = new URL('/api/v1/address', url);
    const send = address.protocol === 'https:' ? requestHttps : requestHttp;
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    const request = send(address.href, { family, signal, agent: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (part: string) => {
        text += part;
        if (text.length > RESPONSE_BYTES_MAX) request.destroy(new Error('the response is too long'));
      });
      response.on('error', reject).on('end', () => {
        try {
          resolve(JSON.parse(text) as Address);
        } catch (error) {
          reject(error);
        }
      });
    });
    request.on('error', reject).end();
  });

/**
 * The address of this computer in the family by which its requests do not reach the gateway: its connections to
 * a database may use either. It is found by a second request, to a name of that family if the gateway has one.
 * @returns null if there is none, or if the gateway does not say
 */
export async function otherAddress(url: string): Promise<string | null> {
  try {
    const own = await ask(url, 0);
    const family = isIP(own.address ?? '');
    if (family === 0) return null;
    const { address } = family === 4 ? await ask(own.ipv6_url ?? url, 6) : await ask(own.ipv4_url ?? url, 4);
    const other = isIP(address ?? '');
    return other === 0 || other === family ? null : address;
  } catch {
    return null;
  }
}

/** In place of a network: the address of the request. */
export const ME = 'me';

/** The same networks, with the other address of this computer next to `me`. */
export async function withOtherAddress(url: string, networks: readonly string[]): Promise<string[]> {
  const other = networks.includes(ME) ? await otherAddress(url) : null;
  return [...networks, ...(other !== null && !networks.includes(other) ? [other] : [])];
}
