import { z } from 'zod';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { unwrap } from '../errors.ts';
import { EVENT_MEANINGS } from '../events/event-types.ts';
import { repeatIfLost } from '../lost-object.ts';
import { operation, operations } from '../pipeline/operation.ts';
import { responseHeaders } from '../pipeline/response-headers.ts';
import { inProject, ProjectParams, StreamQuery } from './in-project.ts';

/**
 * Other texts are no position in any log, like a number that is not in this one: the stream starts with
 * `reset`.
 */
const POSITION = /^\d{1,15}$/;
const NO_POSITION = -1;

const Headers = z.object({
  'last-event-id': z
    .string()
    .default('')
    .transform((text) => (text === '' ? null : POSITION.test(text) ? Number(text) : NO_POSITION))
    .meta({
      description:
        'The id of the last event that the client received. All later events are sent first. If some of them are no longer stored, the stream starts with the event `reset`.',
      example: '42',
    }),
});

export const eventRoutes = operations().openapi(
  operation({
    access: 'events.read',
    machines: 'of_branches',
    operationId: 'streamEvents',
    method: 'get',
    path: '/api/v1/projects/{project_id}/events',
    summary: 'Stream the changes of a project as server-sent events',
    description:
      'Every change once and in order. Events are stored for an hour, so that a client continues without a gap after a cut connection. The stream also ends when the token expires or the caller loses access to the project.',
    tags: ['Events'],
    request: { params: ProjectParams, query: StreamQuery, headers: Headers },
    responses: {
      200: {
        description: `A stream of events; \`id\` is the position in the log, \`event\` the type and \`data\` an \`Event\`. The first event is \`ready\` (only later changes follow), \`reset\` (changes were missed: read the records again) or, after \`Last-Event-ID\`, the next change; the \`data\` of \`ready\` and \`reset\` is \`{ "project_id" }\`. ${EVENT_MEANINGS} Comments keep the connection open.`,
        headers: responseHeaders(),
        content: { 'text/event-stream': { schema: z.string() } },
      },
    },
    failures: ['STREAM_LIMIT_REACHED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { 'last-event-id': after } = c.req.valid('header');
    const { seconds } = c.req.valid('query');
    await inProject(c, projectId, () => []);
    // A response to HEAD has no body, so there is no stream to keep open.
    const wanted = { after, seconds: c.req.method === 'HEAD' ? 0 : seconds };
    const client = { id: crypto.randomUUID(), principal: c.var.principal };
    const opening = () => coordinatorOf(c.env, projectId).events.stream(projectId, client, wanted);
    const stream = unwrap(await repeatIfLost(opening));
    c.header('Content-Type', 'text/event-stream');
    return c.body(stream, 200);
  },
);
