import { and } from 'drizzle-orm';
import { z } from 'zod';
import { invitations, projectMembers } from '../database/people-schema.ts';
import { users } from '../database/schema.ts';
import { unwrap } from '../errors.ts';
import { IdempotencyHeader, KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import {
  checkInviter,
  Invitation,
  invite,
  isOpenIn,
  resumeInvitation,
  revokeInvitation,
  toInvitationResponse,
} from '../people/invitations.ts';
import {
  changeMemberRole,
  Member,
  type MemberRequest,
  MemberRole,
  membersOf,
  removeMember,
  toMemberResponse,
} from '../people/members.ts';
import {
  ProjectMember,
  ProjectRole,
  projectMembersOf,
  shareProject,
  toProjectMemberResponse,
  unshareProject,
} from '../people/project-sharing.ts';
import { type AppContext, clientOf } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { finishInvitation } from '../sign-in/email-code.ts';
import { LoginResponse, ResponseQuery } from '../sign-in/first-factor.ts';
import { replay } from './creations.ts';
import {
  InvitationParams,
  inProject,
  MemberParams,
  ProjectMemberParams,
  ProjectParams,
} from './in-project.ts';
import { deliverLogin } from './sessions.ts';
import { EXAMPLE_ID, MailedCode, NewPassword, PersonName, signInContextOf } from './sign-in-context.ts';

const tags = ['Members'];

const RoleChange = z.strictObject({ role: MemberRole }).meta({ example: { role: 'operator' } });
const Share = z.strictObject({ role: ProjectRole }).meta({ example: { role: 'viewer' } });

const requestOf = (c: AppContext): MemberRequest => ({
  env: c.env,
  db: databaseOf(c),
  settings: readSettings(c.env),
  principal: c.var.principal,
  client: clientOf(c),
  now: new Date(),
});

const router = operations();

router.openapi(
  operation({
    access: 'members.read',
    machines: 'none',
    operationId: 'listMembers',
    method: 'get',
    path: '/api/v1/members',
    summary: 'List the members of the tenant, oldest first',
    description:
      'A user of the identity provider is listed from the first request with a token that names the tenant.',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of members.', pageOf('members', Member)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(users, 'oldest_first', query);
    const { db, settings, principal } = requestOf(c);
    const rows = await membersOf(db, settings, principal.tenantId, beyond)
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ members: page.map(toMemberResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'changeMemberRole',
    method: 'patch',
    path: '/api/v1/members/{user_id}',
    summary: 'Change the role of a member',
    description:
      'Applies to access tokens that are already issued within 30 seconds. Only an owner can make or change an owner. The roles of users of the identity provider are changed there.',
    tags,
    request: { params: MemberParams, body: jsonBody(RoleChange) },
    responses: { 200: response('The member.', Member) },
    failures: ['MANAGED_BY_PROVIDER', 'LAST_OWNER'],
  }),
  async (c) => {
    const { user_id: userId } = c.req.valid('param');
    const member = unwrap(await changeMemberRole(requestOf(c), userId, c.req.valid('json').role));
    return c.json(toMemberResponse(member), 200);
  },
);

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'removeMember',
    method: 'delete',
    path: '/api/v1/members/{user_id}',
    summary: 'Remove a member from the tenant',
    description:
      'Deletes the account. Its refresh tokens stop working immediately, and its access tokens within 30 seconds. What the member made stays. Only an owner can remove an owner. Users of the identity provider are removed there.',
    tags,
    request: { params: MemberParams },
    responses: { 204: emptyResponse('The member is removed.') },
    failures: ['MANAGED_BY_PROVIDER', 'LAST_OWNER'],
  }),
  async (c) => {
    unwrap(await removeMember(requestOf(c), c.req.valid('param').user_id));
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'members.read',
    machines: 'none',
    operationId: 'listProjectMembers',
    method: 'get',
    path: '/api/v1/projects/{project_id}/members',
    summary: 'List the users that a project is shared with, oldest first',
    description: 'The creator of the project, owners and admins have access in any case and are not listed.',
    tags,
    request: { params: ProjectParams, query: PageQuery },
    responses: { 200: response('A page of users.', pageOf('members', ProjectMember)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { userId: id, createdAt } = projectMembers;
    const { orderBy, beyond } = keyset({ createdAt, id }, 'oldest_first', query);
    const [, rows] = await inProject(c, projectId, (db) => [
      projectMembersOf(db, projectId, beyond)
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ members: page.map(toProjectMemberResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'shareProject',
    method: 'put',
    path: '/api/v1/projects/{project_id}/members/{user_id}',
    summary: 'Share a project with a member of the tenant',
    description: 'Repeat it with another role to change the role.',
    tags,
    request: { params: ProjectMemberParams, body: jsonBody(Share) },
    responses: { 200: response('The user and the role.', ProjectMember) },
  }),
  async (c) => {
    const { project_id: projectId, user_id: userId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    const { role } = c.req.valid('json');
    const member = unwrap(await shareProject(requestOf(c), { projectId, userId, role }));
    return c.json(toProjectMemberResponse(member), 200);
  },
);

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'unshareProject',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/members/{user_id}',
    summary: 'Stop sharing a project with a user',
    description:
      'The user keeps network access and passwords that they know: remove the network rules and rotate the credentials.',
    tags,
    request: { params: ProjectMemberParams },
    responses: { 204: emptyResponse('The project is no longer shared with the user.') },
  }),
  async (c) => {
    const { project_id: projectId, user_id: userId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    unwrap(await unshareProject(requestOf(c), { projectId, userId }));
    return c.body(null, 204);
  },
);

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

router.openapi(
  operation({
    access: 'members.change',
    machines: 'none',
    operationId: 'createInvitation',
    method: 'post',
    path: '/api/v1/invitations',
    summary: 'Invite a person to the tenant',
    description:
      'Mails a code that is valid once and for 7 days. Only an owner can invite an owner. The response is the same for an address that has an account in another tenant; its owner is notified by mail. A tenant can send 50 invitations per hour. An address gets at most 5 mails in 15 minutes, and a mailbox 10 invitations a day.',
    tags,
    request: { headers: IdempotencyHeader, body: jsonBody(NewInvitation) },
    responses: { 201: response('The open invitation.', Invitation, 'Idempotency-Replayed') },
    failures: [
      ...KEY_FAILURES,
      'MANAGED_BY_PROVIDER',
      'SIGN_UP_CLOSED',
      'MEMBER_EXISTS',
      'INVITATION_EXISTS',
      'MAIL_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { principal } = c.var;
    const context = signInContextOf(c);
    unwrap(checkInviter(principal, body.role));
    const keyUse = await keyUseOf(principal, c.req.path, c.req.valid('header')['idempotency-key'], body);
    const uses = await recordedUses(context.db, keyUse, context.now());
    const replayed = replay(c, uses, keyUse);
    if (replayed) {
      await resumeInvitation(context, principal, String(replayed.body.id));
      return c.json(replayed.body as z.input<typeof Invitation>, 201);
    }
    const invitation = unwrap(await invite(context, principal, body, keyUse));
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
    unwrap(await revokeInvitation(signInContextOf(c), c.var.principal, id));
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
    failures: ['SIGN_UP_CLOSED', 'SSO_REQUIRED', 'CODE_WRONG', 'ACCOUNT_EXISTS', 'CROSS_ORIGIN_REQUEST'],
  }),
  async (c) => {
    const { email, invitation_id: challengeId, code, name, password } = c.req.valid('json');
    const finish = () =>
      finishInvitation(signInContextOf(c), { email, challengeId, code }, { name, password });
    return c.json(await deliverLogin(c, c.req.valid('query').response, finish), 200);
  },
);

export const memberRoutes = router;
