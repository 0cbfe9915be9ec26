import { Hono } from 'hono';
import { z } from 'zod';
import { ENROLMENT_PATH, EnrolmentRequest, LINK_PATH } from '../../shared/protocol/enrolment.ts';
import { openDatabase } from '../database/database.ts';
import { ApiError } from '../errors.ts';
import { hostLink } from '../host-link/call-host.ts';
import { enrolHost, publicKeyOf } from '../host-link/enrolment.ts';
import { CALLER_HEADER, type Caller } from '../host-link/links.ts';
import { readBody, readQuery } from '../requests.ts';
import type { Env } from '../settings.ts';

const LinkQuery = z.strictObject({ host_id: z.uuid().toLowerCase() });

/** Routes for the agents of database hosts. Public: a one-time token opens the one, the handshake the other. */
export const agentRoutes = new Hono<{ Bindings: Env }>()
  .post(ENROLMENT_PATH, async (context) => {
    const request = await readBody(context, EnrolmentRequest);
    return context.json(await enrolHost(openDatabase(context.env.DB), request, new Date()));
  })
  .get(LINK_PATH, async (context) => {
    if (context.req.header('upgrade')?.toLowerCase() !== 'websocket') throw new ApiError('UPGRADE_REQUIRED');
    const { host_id: hostId } = readQuery(context, LinkQuery);
    const publicKey = await publicKeyOf(openDatabase(context.env.DB), hostId);
    // Looked up before the object is touched, so that made-up ids make no objects.
    if (!publicKey) throw new ApiError('UNAUTHENTICATED', undefined, 'no enrolled host of that id');
    const caller: Caller = { hostId, publicKey, audience: new URL(context.req.url).host };
    const headers = { Upgrade: 'websocket', [CALLER_HEADER]: JSON.stringify(caller) };
    const { webSocket } = await hostLink(context.env, hostId).fetch('https://host-link/', { headers });
    // A response of our own making, because the pipeline sets headers on it and a fetched one's are fixed.
    return new Response(null, { status: 101, webSocket });
  });
