import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { hosts } from '../database/schema.ts';
import { found, unwrap } from '../errors.ts';
import { CaCertificate, NewHost, Registration, registerHost, renewEnrolment } from '../hosts/enrolment.ts';
import { Host, toHostResponse } from '../hosts/host.ts';
import { hostLink } from '../hosts/host-client.ts';
import { repeatIfLost } from '../lost-object.ts';
import { OPEN_METRICS, platformMetrics } from '../monitoring/platform-metrics.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { connectingIp } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
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
import { HostParams, ProjectParams, TenantParams } from './in-project.ts';

/** Operations for the operator of the platform, not for tenants. */
const tags = ['Platform'];

const HostChange = z
  .strictObject({
    draining: z.boolean().optional().meta({
      description: 'A draining host gets no new projects; its existing projects are not affected.',
    }),
    ca_certificate: CaCertificate.optional(),
    accept_records: z.literal(true).optional().meta({
      description:
        'After D1 was restored from a backup: lets these records decide again what is dropped on the host. Databases of branches that they call deleted are dropped.',
    }),
  })
  .refine((change) => Object.keys(change).length > 0, 'Provide at least one field.')
  .meta({ example: { draining: true } });

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
    failures: ['HOST_EXISTS'],
  }),
  async (c) => {
    return c.json(unwrap(await registerHost(databaseOf(c), c.req.valid('json'), new Date())), 201);
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
    return c.json(unwrap(await renewEnrolment(databaseOf(c), hostId, new Date())), 201);
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
    const rows = await databaseOf(c)
      .select()
      .from(hosts)
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
    operationId: 'updateHost',
    method: 'patch',
    path: '/platform/v1/hosts/{host_id}',
    summary: 'Drain a database host, replace its CA certificate, or accept restored records',
    tags,
    request: { params: HostParams, body: jsonBody(HostChange) },
    responses: { 200: response('The updated host.', Host) },
  }),
  async (c) => {
    const { draining, ca_certificate: caCertificate, accept_records: acceptsRecords } = c.req.valid('json');
    const hostId = c.req.valid('param').host_id;
    const rows = await databaseOf(c)
      .update(hosts)
      // A statement has to set something.
      .set({ id: hostId, draining, caCertificate })
      .where(eq(hosts.id, hostId))
      .returning();
    const host = found(rows);
    if (acceptsRecords) await repeatIfLost(() => hostLink(c.env, hostId).acceptRecords());
    return c.json(await toHostResponse(c.env, host), 200);
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
