import { and } from 'drizzle-orm';
import { z } from 'zod';
import { invitations } from '../database/people-schema.ts';
import { IdempotencyHeader, KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import {
  Invitation,
  invite,
  isOpenIn,
  requireInviter,
  resumeInvitation,
  revokeInvitation,
  toInvitationResponse,
} from '../people/invitations.ts';
import { MemberRole } from '../people/members.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { finishInvitation } from '../sign-in/email-code.ts';
import { LoginResponse, ResponseQuery } from '../sign-in/first-factor.ts';
import { replay } from './creations.ts';
import { deliverLogin } from './page-session.ts';
import { InvitationParams } from './parameters.ts';
import { signInContextOf } from './sign-in-context.ts';
import { EXAMPLE_ID, MailedCode, NewPassword, PersonName } from './sign-in-fields.ts';

const tags = ['Members'];

const NewInvitation = z
  .strictObject({ email: EmailAddress, role: MemberRole })
  .meta({ example: { email: 'grace@example.com', role: 'operator' } });

const Acceptance = z
  .strictObject({
    email: EmailAddress,
    invitation_id: z.uuid(),
    code: MailedCode,
    name: PersonName,
    password: NewPassword,
  })
  .meta({
    example: {
      email: 'grace@example.com',
      invitation_id: EXAMPLE_ID,
      code: '482910',
      name: 'Grace Hopper',
      password: 'correct horse battery',
    },
  });

const router = operations();

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'createInvitation',
    method: 'post',
    path: '/api/v1/invitations',
    summary: 'Invite a person to the tenant',
    description:
      'Mails a code that is valid once and for 7 days. Only an owner can invite an owner. The response is the same for an address that has an account in another tenant; its owner is notified by mail. A tenant can send 50 invitations per hour, and an address gets at most 5 mails in 15 minutes.',
    tags,
    request: { headers: IdempotencyHeader, body: jsonBody(NewInvitation) },
    responses: { 201: response('The open invitation.', Invitation, 'Idempotency-Replayed') },
    failures: [
      ...KEY_FAILURES,
      'MANAGED_BY_PROVIDER',
      'MEMBER_EXISTS',
      'INVITATION_EXISTS',
      'MAIL_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { principal } = c.var;
    const context = signInContextOf(c);
    requireInviter(context, principal, body.role);
    const keyUse = await keyUseOf(principal, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const uses = await recordedUses(context.db, keyUse, context.now());
    const replayed = replay(c, uses, keyUse);
    if (replayed) {
      await resumeInvitation(context, principal, String(replayed.body.id));
      return c.json(replayed.body as z.input<typeof Invitation>, 201);
    }
    const invitation = await invite(context, principal, body, keyUse);
    return c.json(toInvitationResponse(invitation), 201);
  },
);

router.openapi(
  operation({
    access: 'members.read',
    machines: 'none',
    operationId: 'listInvitations',
    method: 'get',
    path: '/api/v1/invitations',
    summary: 'List open invitations, oldest first',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of invitations.', pageOf('invitations', Invitation)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(invitations, 'oldest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(invitations)
      .where(and(isOpenIn(c.var.principal.tenantId, new Date()), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ invitations: page.map(toInvitationResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'revokeInvitation',
    method: 'delete',
    path: '/api/v1/invitations/{invitation_id}',
    summary: 'Revoke an open invitation',
    tags,
    request: { params: InvitationParams },
    responses: { 204: emptyResponse('The code of the invitation is no longer valid.') },
  }),
  async (c) => {
    const { invitation_id: id } = c.req.valid('param');
    await revokeInvitation(signInContextOf(c), c.var.principal, id);
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'acceptInvitation',
    method: 'post',
    path: '/api/v1/auth/invitations/accept',
    summary: 'Accept an invitation with its mailed code',
    description:
      'Creates an account in the tenant that invited the address. An invitation accepts 5 attempts, and attempts have the limits of `magic-link/verify`.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(Acceptance) },
    responses: { 200: response('Tokens, or a pre-auth token for the next step.', LoginResponse) },
    failures: ['CODE_WRONG', 'ACCOUNT_EXISTS', 'CROSS_ORIGIN_REQUEST'],
  }),
  async (c) => {
    const { email, invitation_id: challengeId, code, name, password } = c.req.valid('json');
    const finish = () =>
      finishInvitation(signInContextOf(c), { email, challengeId, code }, { name, password });
    return c.json(await deliverLogin(c, c.req.valid('query').response, finish), 200);
  },
);

export const invitationRoutes = router;
