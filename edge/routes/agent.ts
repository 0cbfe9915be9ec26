import { z } from 'zod';
import {
  ENROLMENT_PATH,
  EnrolmentReply,
  EnrolmentRequest,
  LINK_PATH,
} from '../../shared/protocol/enrolment.ts';
import {
  CERTIFICATE_PATH,
  CertificateReply,
  DNS_CHALLENGE_PATH,
  DnsChallengeReply,
  SignedRequest,
} from '../../shared/protocol/host-certificate.ts';
import {
  MEMBER_PATH,
  MEMBER_TYPE,
  MemberClaims,
  MemberReply,
  STANDBY_PATH,
  STANDBY_TYPE,
  StandbyClaims,
  StandbyReply,
} from '../../shared/protocol/standby.ts';
import { openDatabase } from '../database/database.ts';
import { ApiError, unwrap } from '../errors.ts';
import { admitToPrimary } from '../failover/promotion.ts';
import { CALLER_HEADER, type Caller } from '../host-link/links.ts';
import { enrolHost, publicKeyOf } from '../hosts/enrolment.ts';
import { issueCertificate, setDnsChallenge, verifiedRequest } from '../hosts/host-certificate.ts';
import { hostLink } from '../hosts/host-client.ts';
import { readMember, renewLease } from '../hosts/pair.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';

const tags = ['Agents'];

const Enrolment = EnrolmentRequest.meta({
  example: {
    enrolment_token: 'dGhlIG9uZS10aW1lIHRva2VuIG9mIGEgbmV3IGhvc3Q',
    // The public key of RFC 8037, appendix A.
    public_key: { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' },
  },
});

const LinkQuery = z.strictObject({ host_id: z.uuid().toLowerCase() });

/** What a host has signed, and for whom. */
const received = (c: {
  req: { url: string; valid: (target: 'json') => z.output<typeof SignedRequest> };
}) => ({
  request: c.req.valid('json'),
  audience: new URL(c.req.url).host,
  now: new Date(),
});

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'enrolHost',
    method: 'post',
    path: ENROLMENT_PATH,
    summary: 'Enrol a database host',
    description:
      'Used by agents. Registers the public key of the host, authenticated by the one-time enrolment token of `registerHost`.',
    tags,
    request: { body: jsonBody(Enrolment) },
    responses: { 200: response('The host is enrolled.', EnrolmentReply) },
    failures: ['UNAUTHENTICATED'],
  }),
  async (c) => c.json(unwrap(await enrolHost(databaseOf(c), c.req.valid('json'), new Date())), 200),
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'openLink',
    method: 'get',
    path: LINK_PATH,
    summary: 'Open the link of a host',
    description:
      'Used by agents. Upgrades the connection to a WebSocket, in which the host authenticates with its key.',
    tags,
    request: { query: LinkQuery },
    responses: { 101: emptyResponse('The link is open.') },
    failures: ['UNAUTHENTICATED', 'UPGRADE_REQUIRED'],
  }),
  async (c) => {
    if (c.req.header('upgrade')?.toLowerCase() !== 'websocket') throw new ApiError('UPGRADE_REQUIRED');
    const { host_id: hostId } = c.req.valid('query');
    const publicKey = await publicKeyOf(databaseOf(c), hostId);
    // Checked before the object is accessed, so that made-up IDs create no objects.
    if (!publicKey) throw new ApiError('UNAUTHENTICATED', undefined, 'no enrolled host of that id');
    const caller: Caller = { hostId, publicKey, audience: new URL(c.req.url).host };
    const headers = { Upgrade: 'websocket', [CALLER_HEADER]: JSON.stringify(caller) };
    const { webSocket } = await hostLink(c.env, hostId).fetch('https://host-link/', { headers });
    // A new response, because the pipeline sets headers and those of a fetched response are immutable.
    return new Response(null, { status: 101, webSocket });
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'setDnsChallenge',
    method: 'post',
    path: DNS_CHALLENGE_PATH,
    summary: 'Set the DNS record for the certificate of a host',
    description:
      'Used by agents. Sets or removes the TXT record `_acme-challenge` of the name of the host, authenticated by the signature of its key.',
    tags,
    request: { body: jsonBody(SignedRequest) },
    responses: { 200: response('The record is as wanted.', DnsChallengeReply) },
    failures: ['UNAUTHENTICATED', 'DNS_NOT_CONFIGURED', 'DNS_UNAVAILABLE'],
  }),
  async (c) => c.json(unwrap(await setDnsChallenge(databaseOf(c), readSettings(c.env), received(c))), 200),
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'issueHostCertificate',
    method: 'post',
    path: CERTIFICATE_PATH,
    summary: "Issue a certificate of the gateway's authority",
    description:
      'Used by agents of hosts that have no public certificate, for instance because their address is an IP address. Issues a certificate of 90 days for the address of the host, authenticated by the signature of its key. Clients find the authority in the credentials of a branch.',
    tags,
    request: { body: jsonBody(SignedRequest) },
    responses: { 200: response('The certificate.', CertificateReply) },
    failures: ['UNAUTHENTICATED', 'HOST_HAS_AUTHORITY'],
  }),
  async (c) => c.json(unwrap(await issueCertificate(databaseOf(c), readSettings(c.env), received(c))), 200),
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'getHostMember',
    method: 'post',
    path: MEMBER_PATH,
    summary: 'Get the role of a host',
    description:
      'Used by agents, before a server of a host with a standby opens a port, and to renew its lease. Authenticated by the signature of the key of the host.',
    tags,
    request: { body: jsonBody(SignedRequest) },
    responses: { 200: response('What is on record of the host.', MemberReply) },
    failures: ['UNAUTHENTICATED', 'HOST_UNAVAILABLE'],
  }),
  async (c) => {
    const signed = await verifiedRequest(openDatabase(c.env.DB), received(c), MEMBER_TYPE, MemberClaims);
    const { host, claims } = unwrap(signed);
    const found = await readMember(c.env, host.id);
    if (!found) throw new ApiError('UNAUTHENTICATED');
    const is_renewed = unwrap(await renewLease(c.env, host.id, found.member, claims));
    return c.json({ ...found.member, is_renewed }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'admitStandby',
    method: 'post',
    path: STANDBY_PATH,
    summary: 'Let a standby copy its primary',
    description:
      'Used by agents of standbys and of former primaries. Has the primary make a login with the verifier of a password that the standby has made.',
    tags,
    request: { body: jsonBody(SignedRequest) },
    responses: { 200: response('How to reach the primary.', StandbyReply) },
    failures: [
      ...(['UNAUTHENTICATED', 'HOST_NOT_STANDBY', 'HOST_HAS_STANDBY', 'HOST_UNAVAILABLE'] as const),
      'HOST_UPGRADE_REQUIRED',
    ],
  }),
  async (c) => {
    const signed = await verifiedRequest(openDatabase(c.env.DB), received(c), STANDBY_TYPE, StandbyClaims);
    const { host, claims } = unwrap(signed);
    return c.json(unwrap(await admitToPrimary(c.env, host.id, claims.verifier)), 200);
  },
);

export const agentRoutes = router;
