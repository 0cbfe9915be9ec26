import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { hosts } from '../database/schema.ts';
import { found, unwrap } from '../errors.ts';
import { promoteStandby } from '../failover/promotion.ts';
import { Host, hostRows, toHostResponse } from '../hosts/host.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { HostParams } from './in-project.ts';

/** What an operator does about a host and its standby. */
const tags = ['Platform'];

const Promotion = z
  .strictObject({
    lost: z.uuid().optional().meta({
      description:
        'The ID of the primary, if its machine is lost. Left out: the primary is closed first, and nothing is lost.',
    }),
    force: z.boolean().optional().meta({
      description:
        'With `lost`: promotes the standby although the primary is connected, for instance because its PostgreSQL hangs. Default: false.',
    }),
  })
  .meta({ example: { lost: '0b0e9d4c-6a5f-4a39-9b0a-0d6f3b1f7c21' } });

const Promoted = z
  .strictObject({
    host: Host,
    survived_until: z.iso.datetime().nullable().meta({
      description:
        'Everything that the former primary had committed until then is there. Null: not known. Without `lost` nothing is missing.',
    }),
  })
  .meta({ id: 'HostPromotion' });

const router = operations();

router.openapi(
  operation({
    access: 'platform',
    operationId: 'promoteHost',
    method: 'post',
    path: '/platform/v1/hosts/{host_id}/promote',
    summary: 'Make a standby the primary',
    description:
      'The standby gets all projects of its primary, which is fenced: its servers stay closed, also when it comes back. With `lost`, make sure that the machine is off or cannot be reached by clients: an agent that cannot reach the gateway keeps serving, with AUTO_PROMOTE_SECONDS for up to two thirds of them. A repeated request finishes an interrupted one.',
    tags,
    request: { params: HostParams, body: jsonBody(Promotion) },
    responses: { 200: response('The standby is the primary and serves.', Promoted) },
    failures: ['HOST_NOT_STANDBY', 'STANDBY_NOT_READY', 'PRIMARY_UNAVAILABLE', 'PRIMARY_LINKED', 'HOST_BUSY'],
  }),
  async (c) => {
    const { host_id: hostId } = c.req.valid('param');
    const { lost = null, force = false } = c.req.valid('json');
    const promoting = promoteStandby(c.env, hostId, { lost, force }, new Date());
    // A client that is gone does not leave both hosts closed.
    c.executionCtx.waitUntil(promoting.catch(() => {}));
    const { survivedUntil } = unwrap(await promoting);
    const db = databaseOf(c);
    const row = found(await hostRows(db).where(eq(hosts.id, hostId)));
    return c.json({ host: await toHostResponse(c.env, row), survived_until: survivedUntil }, 200);
  },
);

export const platformStandbyRoutes = router;
