import { and } from 'drizzle-orm';
import { sessions } from '../database/people-schema.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { emptyResponse, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import {
  endAllSessions,
  endOwnSession,
  isSessionOf,
  Session,
  toSessionResponse,
} from '../sign-in/own-sessions.ts';
import { SessionParams } from './parameters.ts';
import { signInContextOf } from './sign-in-context.ts';

const tags = ['Sign-in'];

const ACCESS_TOKENS =
  'Refresh tokens stop working immediately, and access tokens within 30 seconds. Sessions of the identity provider end there.';

const router = operations();

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'listSessions',
    method: 'get',
    path: '/api/v1/auth/sessions',
    summary: 'List the open sessions of your account, newest first',
    description: 'Empty for a user of the identity provider, which has its own list.',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of sessions.', pageOf('sessions', Session)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(sessions, 'newest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(sessions)
      .where(and(isSessionOf(c.var.identity, new Date()), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    const { sessionId } = c.var.identity;
    return c.json({ sessions: page.map((row) => toSessionResponse(row, sessionId)), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'endSession',
    method: 'delete',
    path: '/api/v1/auth/sessions/{session_id}',
    summary: 'Sign out one of your sessions',
    description: ACCESS_TOKENS,
    tags,
    request: { params: SessionParams },
    responses: { 204: emptyResponse('The session has ended.') },
    failures: ['MANAGED_BY_PROVIDER'],
  }),
  async (c) => {
    const { session_id: id } = c.req.valid('param');
    await endOwnSession(signInContextOf(c), c.var.principal ?? null, id);
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'endAllSessions',
    method: 'delete',
    path: '/api/v1/auth/sessions',
    summary: 'Sign out all your sessions, this one included',
    description: ACCESS_TOKENS,
    tags,
    responses: { 204: emptyResponse('All sessions have ended.') },
    failures: ['MANAGED_BY_PROVIDER'],
  }),
  async (c) => {
    await endAllSessions(signInContextOf(c), c.var.principal ?? null);
    return c.body(null, 204);
  },
);

export const ownSessionRoutes = router;
