import { isNotNull } from 'drizzle-orm';
import { z } from 'zod';
import { VERSION } from '../../shared/version.ts';
import { hosts } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { isLinked } from '../hosts/host-client.ts';
import { operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';

const tags = ['Health'];

const Version = z.strictObject({
  version: z.string().meta({ description: 'Of the release.', example: '1.0.0' }),
});

const Ready = z.strictObject({ status: z.literal('ready') });

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'isAlive',
    method: 'get',
    path: '/healthz',
    summary: 'Check that the gateway is running',
    tags,
    responses: { 200: response('The gateway is running.', z.strictObject({ status: z.literal('ok') })) },
  }),
  (c) => c.json({ status: 'ok' as const }, 200),
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'isReady',
    method: 'get',
    path: '/readyz',
    summary: 'Check that the gateway can serve requests',
    description:
      'Checks the settings, that D1 responds and that the agent of at least one database host is connected. A missing or invalid setting is named with what it accepts.',
    tags,
    responses: { 200: response('The gateway can serve requests.', Ready) },
    failures: ['HOST_UNAVAILABLE', 'SETTINGS_INVALID'],
  }),
  async (c) => {
    const enrolled = await databaseOf(c)
      .select({ id: hosts.id })
      .from(hosts)
      .where(isNotNull(hosts.enrolledAt));
    const linked = await Promise.all(enrolled.map(({ id }) => isLinked(c.env, id)));
    if (!linked.includes(true)) throw new ApiError('HOST_UNAVAILABLE');
    return c.json({ status: 'ready' as const }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'getVersion',
    method: 'get',
    path: '/version',
    summary: 'Get the version of the gateway',
    tags,
    responses: { 200: response('The version.', Version) },
  }),
  (c) => c.json({ version: VERSION }, 200),
);

export const healthRoutes = router;
