import { and, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { drains } from '../database/move-schema.ts';
import { hosts } from '../database/schema.ts';
import { found, unwrap } from '../errors.ts';
import { pushMember } from '../failover/promotion.ts';
import {
  CaCertificate,
  NewHost,
  Placement,
  Registration,
  registerHost,
  renewEnrolment,
  ServerAddress,
} from '../hosts/enrolment.ts';
import { Host, hostRows, removeHost, toHostResponse } from '../hosts/host.ts';
import { hostLink } from '../hosts/host-client.ts';
import {
  IdempotencyHeader,
  KEY_FAILURES,
  keyUseOf,
  OPERATOR,
  recordedUses,
} from '../idempotency/idempotency-key.ts';
import { logEvent } from '../log.ts';
import { repeatIfLost } from '../lost-object.ts';
import { OPEN_METRICS, platformMetrics } from '../monitoring/platform-metrics.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { createTenant, NewTenant, resumeOwnerInvitation, Tenant } from '../people/tenants.ts';
import { connectingIp } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { responseHeaders } from '../pipeline/response-headers.ts';
import { readSettings } from '../settings.ts';
import {
  CapsChange,
  changeCaps,
  changeTenantCaps,
  ProjectCaps,
  TenantCaps,
  TenantCapsRequest,
} from '../tenancy/tenant-caps.ts';
import { replay } from './creations.ts';
import { Flag, HostParams, ProjectParams, TenantParams } from './in-project.ts';
import { signInContextOf } from './sign-in-context.ts';

/** Operations for the operator of the platform, not for tenants. */
const tags = ['Platform'];

const HostChange = z
  .strictObject({
    db_host: ServerAddress.db_host.optional().meta({
      description:
        'The new name or address in connection URLs. Credentials that were shown before have the old one, which should lead to the host for as long as clients use it.',
    }),
    direct_port: ServerAddress.direct_port.optional(),
    pooled_port: ServerAddress.pooled_port.optional(),
    draining: z.boolean().optional().meta({
      description:
        'A draining host gets no new projects; those that it has stay. Both values end a drain after its present move.',
    }),
    region: Placement.region.optional(),
    capacity: Placement.capacity.optional(),
    ca_certificate: CaCertificate.optional(),
    accept_records: z.literal(true).optional().meta({
      description:
        'After D1 was restored from a backup: lets these records decide again what is dropped on the host. Databases of branches that they call deleted are dropped.',
    }),
  })
  .refine((change) => Object.keys(change).length > 0, 'Provide at least one field.')
  .meta({ example: { draining: true } });

const RemovalQuery = z.strictObject({
  switched_off: Flag(false).meta({
    description:
      'Whether the machine of a former primary is switched off for good, so that it is removed without its report.',
  }),
});

const router = operations();

router.openapi(
  operation({
    access: 'platform',
    operationId: 'registerHost',
    method: 'post',
    path: '/platform/v1/hosts',
    summary: 'Register a database host',
    description:
      'Returns the one-time token with which the agent enrols the host. Registering the same name again before the enrolment replaces the earlier registration and its token.',
    tags,
    request: { body: jsonBody(NewHost) },
    responses: {
      201: response('The registration. The token is shown only here and expires in one hour.', Registration),
    },
    failures: ['HOST_EXISTS', 'HOST_NOT_PRIMARY', 'HOST_HAS_STANDBY'],
  }),
  async (c) => {
    const { BASE_URL } = readSettings(c.env);
    return c.json(unwrap(await registerHost(databaseOf(c), BASE_URL, c.req.valid('json'), new Date())), 201);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'renewHostEnrolment',
    method: 'post',
    path: '/platform/v1/hosts/{host_id}/enrolment',
    summary: 'Get a token to enrol a database host again',
    description:
      'For a host whose machine, and with it the key of its agent, was lost. The present key is valid until the host is enrolled with the token.',
    tags,
    request: { params: HostParams },
    responses: {
      201: response('The registration. The token is shown only here and expires in one hour.', Registration),
    },
  }),
  async (c) => {
    const { host_id: hostId } = c.req.valid('param');
    const { BASE_URL } = readSettings(c.env);
    return c.json(unwrap(await renewEnrolment(databaseOf(c), BASE_URL, hostId, new Date())), 201);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'listHosts',
    method: 'get',
    path: '/platform/v1/hosts',
    summary: 'List database hosts, oldest first',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of hosts.', pageOf('hosts', Host)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(hosts, 'oldest_first', query);
    const rows = await hostRows(databaseOf(c))
      .where(beyond)
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    const records = await Promise.all(page.map((row) => toHostResponse(c.env, row)));
    return c.json({ hosts: records, next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'getHost',
    method: 'get',
    path: '/platform/v1/hosts/{host_id}',
    summary: 'Get a database host',
    tags,
    request: { params: HostParams },
    responses: { 200: response('The host.', Host) },
  }),
  async (c) => {
    const { host_id: hostId } = c.req.valid('param');
    const host = found(await hostRows(databaseOf(c)).where(eq(hosts.id, hostId)));
    return c.json(await toHostResponse(c.env, host), 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'updateHost',
    method: 'patch',
    path: '/platform/v1/hosts/{host_id}',
    summary: 'Rename, place or drain a database host, replace its CA certificate, or accept restored records',
    tags,
    request: { params: HostParams, body: jsonBody(HostChange) },
    responses: { 200: response('The updated host.', Host) },
  }),
  async (c) => {
    const change = c.req.valid('json');
    const hostId = c.req.valid('param').host_id;
    const db = databaseOf(c);
    const isThisHost = eq(hosts.id, hostId);
    const [, rows] = await db.batch([
      db
        .update(hosts)
        .set({
          // A statement has to set something.
          id: hostId,
          dbHost: change.db_host,
          directPort: change.direct_port,
          pooledPort: change.pooled_port,
          draining: change.draining,
          region: change.region,
          capacity: change.capacity,
          caCertificate: change.ca_certificate,
        })
        .where(isThisHost),
      hostRows(db).where(isThisHost),
      // A drain that is still under way would move projects from a host that gets new ones.
      db.delete(drains).where(and(eq(drains.hostId, hostId), sql`${change.draining !== undefined}`)),
    ]);
    const host = found(rows);
    if (change.accept_records) await repeatIfLost(() => hostLink(c.env, hostId).acceptRecords());
    return c.json(await toHostResponse(c.env, host), 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'removeHost',
    method: 'delete',
    path: '/platform/v1/hosts/{host_id}',
    summary: 'Remove a database host without projects',
    description:
      'Ends the link of the host and refuses its key from then on. The name is free for another host. Nothing on the machine is changed: run `branchgate-agent leave` there. A former primary that has not reported that its servers are stopped is refused, because the fence could not reach it any more.',
    tags,
    request: { params: HostParams, query: RemovalQuery },
    responses: { 204: emptyResponse('The host is removed.') },
    failures: ['HOST_NOT_EMPTY', 'HOST_HAS_STANDBY', 'HOST_NOT_FENCED'],
  }),
  async (c) => {
    const { host_id: hostId } = c.req.valid('param');
    const db = databaseOf(c);
    const { enrolledAt, standbyOf } = found(await hostRows(db).where(eq(hosts.id, hostId)));
    unwrap(await removeHost(db, hostId, c.req.valid('query').switched_off));
    // Only an enrolled host has an object. If this fails, the next alarm of the object finds that the host is
    // gone.
    if (enrolledAt !== null)
      await repeatIfLost(() => hostLink(c.env, hostId).forget()).catch((error) =>
        logEvent('host.link_not_ended', { host_id: hostId, reason: String(error) }),
      );
    // Otherwise the next look at the primary has it drop the slot.
    if (standbyOf !== null) await pushMember(c.env, standbyOf).catch(() => {});
    logEvent('host.removed', { host_id: hostId });
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'updateProjectCaps',
    method: 'patch',
    path: '/platform/v1/projects/{project_id}',
    summary: 'Change the branch and storage caps of a project',
    description: 'The change is recorded in the audit log of the tenant that owns the project.',
    tags,
    request: { params: ProjectParams, body: jsonBody(CapsChange) },
    responses: { 200: response('The updated caps.', ProjectCaps) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const request = { ip: connectingIp(c), requestId: c.var.requestId };
    const change = c.req.valid('json');
    const changed = await changeCaps(databaseOf(c), readSettings(c.env), projectId, change, request);
    return c.json(unwrap(changed), 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'createTenant',
    method: 'post',
    path: '/platform/v1/tenants',
    summary: 'Create a tenant and invite its first owner',
    description:
      'Mails a code that is valid once and for 7 days, whatever `SIGN_UP` is. Until the tenant has a member, a repeated request sends the invitation again if its mail was interrupted, and replaces one that has expired or names another address.',
    tags,
    request: { headers: IdempotencyHeader, body: jsonBody(NewTenant) },
    responses: {
      201: response('The tenant, and the invitation of its owner.', Tenant, 'Idempotency-Replayed'),
    },
    failures: [...KEY_FAILURES, 'TENANT_EXISTS', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const context = signInContextOf(c);
    const caller = { tenantId: body.tenant_id, userId: OPERATOR };
    const keyUse = await keyUseOf(caller, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const replayed = replay(c, await recordedUses(context.db, keyUse, context.now()), keyUse);
    if (replayed) {
      const tenant = replayed.body as z.output<typeof Tenant>;
      await resumeOwnerInvitation(context, tenant.invitation.id);
      return c.json(tenant, 201);
    }
    return c.json(unwrap(await createTenant(context, body, keyUse)), 201);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'setTenantCaps',
    method: 'put',
    path: '/platform/v1/tenants/{tenant_id}/caps',
    summary: 'Set the caps of a tenant on projects and on the total of their storage quotas',
    description:
      'Replaces both caps; one that is left out is the default of the service again. Existing projects and quotas are not affected. The change is recorded in the audit log of the tenant.',
    tags,
    request: { params: TenantParams, body: jsonBody(TenantCapsRequest) },
    responses: { 200: response('The caps in effect.', TenantCaps) },
  }),
  async (c) => {
    const { tenant_id: tenantId } = c.req.valid('param');
    const request = { ip: connectingIp(c), requestId: c.var.requestId };
    const caps = c.req.valid('json');
    const changed = await changeTenantCaps(databaseOf(c), readSettings(c.env), tenantId, caps, request);
    return c.json(unwrap(changed), 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'readPlatformMetrics',
    method: 'get',
    path: '/platform/v1/metrics',
    summary: 'Read the metrics of the platform for Prometheus',
    description:
      'The text format of OpenMetrics: hosts and their links, branches by status, open jobs by age, and refusals of rate limits. At most 15 s old.',
    tags,
    responses: {
      200: {
        description: 'The metrics.',
        headers: responseHeaders(),
        content: { 'application/openmetrics-text': { schema: z.string() } },
      },
    },
  }),
  async (c) => {
    const text = await platformMetrics(c.env, Date.now());
    return c.body(text, 200, { 'Content-Type': OPEN_METRICS });
  },
);

export const platformRoutes = router;
