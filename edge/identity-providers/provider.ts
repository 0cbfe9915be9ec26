import { and, eq, notInArray, sql } from 'drizzle-orm';
import { base64url } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { rejected } from '../authentication/rejection.ts';
import { sha256 } from '../crypto/encoding.ts';
import { seal, unseal } from '../crypto/seal.ts';
import { type AuditActor, ROLES } from '../database/column-types.ts';
import {
  identityProviders,
  PROVIDER_KINDS,
  type ProviderDomainRow,
  type ProviderRow,
  providerDomains,
  providerPeople,
} from '../database/company-schema.ts';
import { type Database, insertAllIf, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, organizations } from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { missing } from '../missing.ts';
import type { Settings } from '../settings.ts';
import { endPeople, hasOwnerBesides } from './people.ts';
import { providerAddressProblem } from './provider-fetch.ts';

const DOMAIN = /^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])$/;
const DOMAINS_MAX = 20;
const PROVIDERS_MAX = 10;
const ROLES_MAX = 100;

const Domain = z
  .string()
  .toLowerCase()
  .max(253)
  .regex(DOMAIN, 'Expected a domain such as example.com')
  .meta({ example: 'example.com' });

const FIELDS = {
  name: z.string().trim().min(1).max(100).meta({
    description: 'Shown on the sign-in page.',
    example: 'Acme',
  }),
  client_id: z.string().min(1).max(256).meta({ example: 'branchgate' }),
  domains: z
    .array(Domain)
    .min(1)
    .max(DOMAINS_MAX)
    .transform((domains) => [...new Set(domains)])
    .meta({ description: 'E-mail domains of its people.', example: ['example.com'] }),
  default_role: z.enum(ROLES).meta({
    description: 'The role of a person whose claim matches none of `roles`.',
    example: 'viewer',
  }),
  role_claim: z.string().min(1).max(200).nullable().meta({
    description:
      'The claim with the groups or roles of a person: a string or a list. Dots lead into nested objects. For GitHub: `teams` (`organization/team`) or `organizations`.',
    example: 'groups',
  }),
  roles: z
    .record(z.string().min(1).max(256), z.enum(ROLES))
    .refine((roles) => Object.keys(roles).length <= ROLES_MAX, `at most ${ROLES_MAX} values`)
    .meta({
      description: 'Role by value of the claim. The first match applies, in the order given here.',
      example: { 'branchgate-admins': 'admin' },
    }),
};
const SECRET = z.string().min(1).max(1024).meta({ description: 'Sealed, and never shown again.' });

const EXAMPLE = {
  name: 'Acme',
  issuer: 'https://login.example.com',
  client_id: 'branchgate',
  client_secret: 'a secret of the client',
  domains: ['example.com'],
  default_role: 'viewer',
  role_claim: 'groups',
  roles: { 'branchgate-admins': 'admin' },
} as const;

export const NewIdentityProvider = z
  .strictObject({
    kind: z.enum(PROVIDER_KINDS).default('oidc'),
    ...FIELDS,
    issuer: z.string().min(1).max(512).optional().meta({
      description: 'The `issuer` of its discovery document. Required for `oidc`; `github` has its own.',
      example: EXAMPLE.issuer,
    }),
    client_secret: SECRET,
    default_role: FIELDS.default_role.default('viewer'),
    role_claim: FIELDS.role_claim.default(null),
    roles: FIELDS.roles.default({}),
  })
  .refine(({ kind, issuer }) => kind === 'github' || issuer !== undefined, {
    path: ['issuer'],
    message: 'Required for an OpenID Connect provider.',
  })
  .meta({ id: 'NewIdentityProvider', example: EXAMPLE });

export const IdentityProviderChange = z
  .strictObject({ ...FIELDS, client_secret: SECRET })
  .partial()
  .refine((change) => Object.keys(change).length > 0, 'Provide at least one field.')
  .meta({ id: 'IdentityProviderChange', example: { roles: { 'branchgate-admins': 'admin' } } });

const ProviderDomain = z.strictObject({
  domain: z.string().meta({ example: 'example.com' }),
  verified_at: z.iso.datetime().nullable().meta({ description: 'Null: it does not count yet.' }),
  txt_record: z.string().meta({
    description: 'The TXT record of the domain that verifies it.',
    example: 'branchgate-verification=k3ud7xqam2pzw5tc',
  }),
});

export const IdentityProvider = z
  .strictObject({
    id: z.uuid(),
    kind: z.enum(PROVIDER_KINDS),
    name: FIELDS.name,
    issuer: z.string().meta({ example: EXAMPLE.issuer }),
    client_id: z.string().meta({ example: 'branchgate' }),
    domains: z.array(ProviderDomain),
    default_role: FIELDS.default_role,
    role_claim: z.string().nullable().meta({ example: 'groups' }),
    roles: z.record(z.string(), z.enum(ROLES)).meta({ example: EXAMPLE.roles }),
    redirect_uri: z.url().meta({ description: 'To be registered at the provider.' }),
    scim_url: z.url().meta({ description: 'The base URL of SCIM 2.0 for this gateway.' }),
    has_scim_token: z.boolean(),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: 'IdentityProvider' });

/** The path that the provider sends browsers back to. One of its own, against mix-ups (RFC 9700, 4.4.2). */
export const callbackPath = (providerId: string) => `/api/v1/auth/sso/${providerId}/callback`;

export const redirectUriOf = ({ BASE_URL }: Pick<Settings, 'BASE_URL'>, providerId: string) =>
  BASE_URL + callbackPath(providerId);

const scimUrlOf = ({ BASE_URL }: Pick<Settings, 'BASE_URL'>) => `${BASE_URL}/scim/v2`;

export const txtRecordOf = ({ verification }: ProviderDomainRow) => `branchgate-verification=${verification}`;

export interface ProviderWithDomains {
  provider: ProviderRow;
  domains: ProviderDomainRow[];
}

export const toProviderResponse = (
  { provider, domains }: ProviderWithDomains,
  settings: Pick<Settings, 'BASE_URL'>,
): z.output<typeof IdentityProvider> => ({
  id: provider.id,
  kind: provider.kind,
  name: provider.name,
  issuer: provider.issuer,
  client_id: provider.clientId,
  domains: domains.map((row) => ({
    domain: row.domain,
    verified_at: row.verifiedAt?.toISOString() ?? null,
    txt_record: txtRecordOf(row),
  })),
  default_role: provider.defaultRole,
  role_claim: provider.roleClaim,
  roles: Object.fromEntries(provider.roles),
  redirect_uri: redirectUriOf(settings, provider.id),
  scim_url: scimUrlOf(settings),
  has_scim_token: provider.scimTokenHash !== null,
  created_at: provider.createdAt.toISOString(),
  updated_at: provider.updatedAt.toISOString(),
});

const ofTenant = (tenantId: string, providerId?: string) =>
  and(
    eq(identityProviders.tenantId, tenantId),
    providerId === undefined ? undefined : eq(identityProviders.id, providerId),
  );

async function providersOf(
  db: Database,
  tenantId: string,
  providerId?: string,
): Promise<ProviderWithDomains[]> {
  const rows = await db
    .select()
    .from(identityProviders)
    .leftJoin(providerDomains, eq(providerDomains.providerId, identityProviders.id))
    .where(ofTenant(tenantId, providerId))
    .orderBy(identityProviders.createdAt, identityProviders.id, providerDomains.domain);
  const found = new Map<string, ProviderWithDomains>();
  for (const { identity_providers: provider, provider_domains: domain } of rows) {
    const entry = found.get(provider.id) ?? { provider, domains: [] };
    if (domain) entry.domains.push(domain);
    found.set(provider.id, entry);
  }
  return [...found.values()];
}

/** The providers of a tenant, oldest first. @returns or NOT_FOUND for an unknown tenant */
export async function listProviders(
  db: Database,
  tenantId: string,
): Promise<Result<ProviderWithDomains[], Failure>> {
  const isTenant = eq(organizations.idpTenantId, tenantId);
  const [found, tenants] = await Promise.all([
    providersOf(db, tenantId),
    db.select({ id: organizations.id }).from(organizations).where(isTenant),
  ]);
  return tenants.length > 0 ? ok(found) : fail(missing('tenant'));
}

/** @returns or NOT_FOUND */
export async function providerOf(
  db: Database,
  tenantId: string,
  providerId: string,
): Promise<Result<ProviderWithDomains, Failure>> {
  const [found] = await providersOf(db, tenantId, providerId);
  return found ? ok(found) : fail({ code: 'NOT_FOUND' });
}

const secretContext = (providerId: string) => ['identity_provider', providerId];

/** The client secret of a provider. It must not reach a log. */
export const clientSecretOf = ({ CREDENTIAL_KEYS }: Settings, row: ProviderRow): Promise<string> =>
  unseal(CREDENTIAL_KEYS, secretContext(row.id), { keyId: row.keyId, sealed: row.sealedSecret });

const invalid = (path: string, message: string): Failure => ({
  code: 'VALIDATION_FAILED',
  fields: { details: [{ path, message }] },
});

const verificationValue = () =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => (byte % 36).toString(36)).join('') +
  crypto.randomUUID().replaceAll('-', '').slice(0, 8);

const domainRows = (
  { id: providerId, tenantId }: Pick<ProviderRow, 'id' | 'tenantId'>,
  domains: readonly string[],
  now: Date,
): ProviderDomainRow[] =>
  domains.map((domain) => ({
    providerId,
    domain,
    tenantId,
    verification: verificationValue(),
    verifiedAt: null,
    createdAt: now,
  }));

/** Who manages the providers of a tenant: an owner, or the operator. */
export interface ProviderRequest {
  db: Database;
  settings: Settings;
  tenantId: string;
  actor: AuditActor;
  now: Date;
}

const about = ({ id, name, kind, issuer }: Pick<ProviderRow, 'id' | 'name' | 'kind' | 'issuer'>) => ({
  metadata: { provider_id: id, name, kind, issuer },
});

/**
 * @returns the response; or VALIDATION_FAILED, NOT_FOUND, IDENTITY_PROVIDER_EXISTS,
 *   IDENTITY_PROVIDER_LIMIT_REACHED, IDEMPOTENCY_IN_FLIGHT
 */
export async function createProvider(
  { db, settings, tenantId, actor, now }: ProviderRequest,
  body: z.output<typeof NewIdentityProvider>,
  keyUse: KeyUse | null,
): Promise<Result<z.output<typeof IdentityProvider>, Failure>> {
  const issuer = body.kind === 'github' ? settings.GITHUB_URL : (body.issuer ?? '');
  const problem = body.kind === 'github' ? null : providerAddressProblem(issuer, settings);
  if (problem) return fail(invalid('issuer', problem));
  if (issuer === settings.BASE_URL) return fail(invalid('issuer', 'is this gateway'));
  const id = crypto.randomUUID();
  const { keyId, sealed } = await seal(settings.CREDENTIAL_KEYS, secretContext(id), body.client_secret);
  const provider: ProviderRow = {
    id,
    tenantId,
    kind: body.kind,
    name: body.name,
    issuer,
    clientId: body.client_id,
    keyId,
    sealedSecret: sealed,
    defaultRole: body.default_role,
    roleClaim: body.role_claim,
    roles: Object.entries(body.roles),
    scimTokenHash: null,
    createdBy: actor.userId,
    createdAt: now,
    updatedAt: now,
  };
  const domains = domainRows(provider, body.domains, now);
  const event = auditEvent('identity_provider.created', actor, about(provider), now);
  const count = sql`(select count(*) from ${identityProviders} where tenant_id = ${tenantId})`;
  const limit = { code: 'IDENTITY_PROVIDER_LIMIT_REACHED', fields: { limit: PROVIDERS_MAX } } as const;
  const made = toProviderResponse({ provider, domains }, settings);
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: id, now, response: { status: 201, body: made } },
    {
      decides: [identityProviders, provider],
      require: [
        [isThere(organizations, eq(organizations.idpTenantId, tenantId)), missing('tenant')],
        [sql`${count} < ${PROVIDERS_MAX}`, limit],
      ],
      rest: (isWritten) => [
        insertAllIf(db, providerDomains, domains, isWritten),
        insertIf(db, auditEvents, event, isWritten),
      ],
      conflicts: { identity_providers: 'IDENTITY_PROVIDER_EXISTS' },
    },
  );
  return written.ok ? ok(made) : written;
}

/** @returns or NOT_FOUND */
export async function changeProvider(
  request: ProviderRequest,
  providerId: string,
  { client_secret, domains, roles, ...change }: z.output<typeof IdentityProviderChange>,
): Promise<Result<ProviderWithDomains, Failure>> {
  const { db, settings, tenantId, actor, now } = request;
  const found = await providerOf(db, tenantId, providerId);
  if (!found.ok) return found;
  const { provider, domains: known } = found.value;
  const secret =
    client_secret === undefined
      ? {}
      : await seal(settings.CREDENTIAL_KEYS, secretContext(providerId), client_secret).then(
          ({ keyId, sealed }) => ({ keyId, sealedSecret: sealed }),
        );
  const values = {
    name: change.name,
    clientId: change.client_id,
    defaultRole: change.default_role,
    roleClaim: change.role_claim,
    ...(roles && { roles: Object.entries(roles) }),
    ...secret,
    updatedAt: now,
  };
  const added = (domains ?? []).filter((domain) => !known.some((row) => row.domain === domain));
  const changed = Object.keys({ ...change, ...(roles && { roles }), ...(domains && { domains }), ...secret });
  const details = {
    metadata: { ...about(provider).metadata, changed: changed.filter((key) => key !== 'keyId') },
  };
  const isIt = ofTenant(tenantId, providerId);
  const written = await guardedWrite(db, {
    decides: [auditEvents, auditEvent('identity_provider.changed', actor, details, now)],
    require: [[isThere(identityProviders, isIt), 'NOT_FOUND']],
    rest: (isWritten) => [
      db.update(identityProviders).set(values).where(and(isIt, isWritten)),
      ...(domains === undefined
        ? []
        : [
            db
              .delete(providerDomains)
              .where(
                and(
                  eq(providerDomains.providerId, providerId),
                  notInArray(providerDomains.domain, domains),
                  isWritten,
                ),
              ),
          ]),
      ...(added.length > 0
        ? [insertAllIf(db, providerDomains, domainRows(provider, added, now), isWritten)]
        : []),
    ],
  });
  return written.ok ? providerOf(db, tenantId, providerId) : written;
}

/**
 * Deletes a provider. Its people have no access any more, as if SCIM had deleted them.
 * @returns or NOT_FOUND; LAST_OWNER for an owner whose tenant would have no other owner
 */
export async function deleteProvider(
  { db, tenantId, actor, now }: ProviderRequest,
  providerId: string,
): Promise<Result<null, Failure>> {
  const found = await providerOf(db, tenantId, providerId);
  if (!found.ok) return found;
  const isIt = ofTenant(tenantId, providerId);
  const ofProvider = eq(providerPeople.providerId, providerId);
  const people = db.select({ id: providerPeople.id }).from(providerPeople).where(ofProvider);
  const event = auditEvent('identity_provider.deleted', actor, about(found.value.provider), now);
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [
      [isThere(identityProviders, isIt), 'NOT_FOUND'],
      // The operator can invite an owner again.
      ...(actor.userId === null ? [] : [[hasOwnerBesides(tenantId, sql`${people}`), 'LAST_OWNER'] as const]),
    ],
    rest: (isWritten) => [
      ...endPeople(db, and(ofProvider, isWritten)),
      db.delete(identityProviders).where(and(isIt, isWritten)),
    ],
  });
  return written.ok ? ok(null) : written;
}

const SCIM_TOKEN_BYTES = 32;

export const ScimToken = z
  .strictObject({
    scim_url: z.url().meta({ description: 'The base URL of SCIM 2.0.' }),
    token: z.string().nullable().meta({
      description:
        'Shown only here. It replaces the one before. Null in the response to a repeated request with the same `Idempotency-Key`.',
    }),
  })
  .meta({ id: 'ScimToken' });

/**
 * Makes the bearer token of SCIM, which replaces the one before.
 * @returns with the token, which is not stored; or NOT_FOUND, IDEMPOTENCY_IN_FLIGHT
 */
export async function createScimToken(
  { db, settings, tenantId, actor, now }: ProviderRequest,
  providerId: string,
  keyUse: KeyUse | null,
): Promise<Result<z.output<typeof ScimToken>, Failure>> {
  const found = await providerOf(db, tenantId, providerId);
  if (!found.ok) return found;
  const token = SCIM_PREFIX + base64url.encode(crypto.getRandomValues(new Uint8Array(SCIM_TOKEN_BYTES)));
  const scimTokenHash = await sha256(token);
  const isIt = ofTenant(tenantId, providerId);
  const event = auditEvent('identity_provider.scim_token.created', actor, about(found.value.provider), now);
  const scim_url = scimUrlOf(settings);
  const written = await writeUnderKey(
    db,
    { use: keyUse, subjectId: event.id, now, response: { status: 201, body: { scim_url, token: null } } },
    {
      decides: [auditEvents, event],
      require: [[isThere(identityProviders, isIt), 'NOT_FOUND']],
      rest: (isWritten) => [
        db.update(identityProviders).set({ scimTokenHash, updatedAt: now }).where(and(isIt, isWritten)),
      ],
    },
  );
  return written.ok ? ok({ scim_url, token }) : written;
}

const SCIM_PREFIX = 'bgscim_';

/** The provider whose SCIM token this is. @returns or UNAUTHENTICATED */
export async function providerOfScimToken(
  db: Database,
  token: string,
): Promise<Result<ProviderRow, Failure>> {
  if (!token.startsWith(SCIM_PREFIX)) return rejected('scim_token_unknown');
  const hash = await sha256(token);
  const [row] = await db.select().from(identityProviders).where(eq(identityProviders.scimTokenHash, hash));
  return row ? ok(row) : rejected('scim_token_unknown');
}
