import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { z } from 'zod';
import * as enrolment from '../../../shared/protocol/enrolment.ts';
import { HEARTBEAT, NotificationFrame, ReplyFrame, RequestFrame } from '../../../shared/protocol/frames.ts';
import { Answer, AnswerClaims, Challenge, Refusal, Welcome } from '../../../shared/protocol/handshake.ts';
import { NOTIFICATIONS } from '../../../shared/protocol/notifications.ts';
import { OPERATIONS } from '../../../shared/protocol/operations.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';

/**
 * SHA-256 of all schemas of the link, by version. Agents and the gateway are upgraded on different days, so a
 * changed schema under an old version is an outage. When this test fails, raise `PROTOCOL_VERSION` and add a
 * line. Never edit the line of a released version.
 */
const HASH_OF_VERSION: Record<number, string> = {
  1: '6fea937999c84b69621f05dfce2f98ed0a30f952adaef67868b3e33fef55d6aa',
  2: '2b45508ac8dab5c2859fe96c9b35405d2ef7ae29900850f85d1992ba0f055e87',
  3: '330bc83e0c4124d574e2c05d9db3a17e6b18dc0ef0358fc4556bd1b5d1fa6a42',
  4: '972e1b2ced0a3a969081671d4a0878e728027941c6cabfb509f246328afe25d4',
  5: 'f29d1401c39114bfd1316cb5b03edd74bc3e49e536d478c35dbd4a9d8d782fb7',
  6: 'f6a03c3997a203cb15e888579ee03e52571e67ca64c72d8774555fb3022b02d7',
};

const schemas = {
  enrolment: [enrolment.EnrolmentRequest, enrolment.EnrolmentReply],
  handshake: [Challenge, Answer, AnswerClaims, Welcome, Refusal],
  frames: [RequestFrame, ReplyFrame, NotificationFrame],
  operations: Object.entries(OPERATIONS).map(([method, { params, result }]) =>
    z.strictObject({ method: z.literal(method), params, result }),
  ),
  notifications: Object.entries(NOTIFICATIONS).map(([method, { params }]) =>
    z.strictObject({ method: z.literal(method), params }),
  ),
};

/** Sorts keys, so that moving a line of a schema is not a change. */
const canonical = (_key: string, value: unknown) =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
    : value;

test('the schemas of the link only change with a new protocol version', () => {
  const wire = Object.entries(schemas).map(([part, list]) => [
    part,
    list.map((schema) => JSON.stringify(z.toJSONSchema(schema, { io: 'input' }), canonical)).sort(),
  ]);
  const paths = [enrolment.ENROLMENT_PATH, enrolment.LINK_PATH];
  const hash = createHash('sha256')
    .update(JSON.stringify([wire, HEARTBEAT, paths]))
    .digest('hex');
  expect(HASH_OF_VERSION[PROTOCOL_VERSION]).toBe(hash);
});
