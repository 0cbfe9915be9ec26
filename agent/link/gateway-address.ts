import { ENROLMENT_PATH, LINK_PATH } from '../../shared/protocol/enrolment.ts';

const LOOPBACK = new Set(['127.0.0.1', '[::1]', 'localhost']);

/**
 * Addresses of the gateway's routes for agents.
 * @throws Error unless it is `https:` or on loopback, because the proof of a new branch carries its password
 */
export function gatewayAddress(gatewayUrl: string) {
  const base = URL.parse(gatewayUrl);
  const isSafe = base?.protocol === 'https:' || (base?.protocol === 'http:' && LOOPBACK.has(base.hostname));
  if (!base || !isSafe)
    throw new Error('the address of the gateway is not an https: URL: set GATEWAY_URL to one');
  return {
    /** Host and port that the agent dials; part of the handshake's signature. */
    audience: base.host,
    enrolment: new URL(ENROLMENT_PATH, base),
    link(hostId: string): URL {
      const url = new URL(LINK_PATH, base);
      url.protocol = base.protocol === 'https:' ? 'wss:' : 'ws:';
      url.searchParams.set('host_id', hostId);
      return url;
    },
  };
}
