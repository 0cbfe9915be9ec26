import { z } from 'zod';
import { AuditEvent, toAuditEventResponse } from '../audit/audit-event.ts';
import { confirmExport, eventsAfter, exportedUntil } from '../audit/export.ts';
import { unwrap } from '../errors.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';

/** The audit log of all tenants, for the copy that the operator keeps. */
const tags = ['Platform'];

const PATH = '/platform/v1/audit-events';
const LIMIT_MAX = 500;

const ExportQuery = z.strictObject({
  after: z.uuid().optional().meta({ description: 'Only events after this one.' }),
  limit: z.coerce.number().int().min(1).max(LIMIT_MAX).default(LIMIT_MAX),
});

const ExportedEvents = z.strictObject({
  audit_events: z.array(AuditEvent),
  exported_until: z.uuid().nullable().meta({
    description: 'The event up to which an export was confirmed; null before the first one.',
  }),
});

const Confirmation = z
  .strictObject({ event_id: z.uuid().meta({ description: 'The last event of the copy.' }) })
  .meta({ example: { event_id: '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b' } });

const router = operations();

router.openapi(
  operation({
    access: 'platform',
    operationId: 'exportAuditEvents',
    method: 'get',
    path: PATH,
    summary: "List all tenants' audit events in the order in which they were recorded",
    description: 'Begins with the event after `after`, or with the oldest one. An empty list is the end.',
    tags,
    request: { query: ExportQuery },
    responses: { 200: response('The next events.', ExportedEvents) },
    failures: ['NOT_FOUND'],
  }),
  async (c) => {
    const { after = null, limit } = c.req.valid('query');
    const db = primaryOf(c);
    const [events, until] = await Promise.all([eventsAfter(db, after, limit), exportedUntil(db)]);
    return c.json({ audit_events: unwrap(events).map(toAuditEventResponse), exported_until: until }, 200);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'confirmAuditExport',
    method: 'put',
    path: `${PATH}/exported`,
    summary: 'Confirm that a copy of all audit events up to one exists',
    description:
      'With `AUDIT_RETENTION_DAYS` and `HISTORY_RETENTION_DAYS`, only what the copy has is deleted. An event before the confirmed one changes nothing.',
    tags,
    request: { body: jsonBody(Confirmation) },
    responses: { 204: emptyResponse('The export is confirmed.') },
    failures: ['NOT_FOUND'],
  }),
  async (c) => {
    unwrap(await confirmExport(primaryOf(c), c.req.valid('json').event_id, new Date()));
    return c.body(null, 204);
  },
);

export const platformAuditRoutes = router;
