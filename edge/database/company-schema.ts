import { sql } from 'drizzle-orm';
import { index, integer, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { created, ROLES, type Role, timestamp, updated } from './column-types.ts';
import { users } from './schema.ts';

export const PROVIDER_KINDS = ['oidc', 'github'] as const;

export type ProviderKind = (typeof PROVIDER_KINDS)[number];

/** The identity providers of tenants (`docs/company-sign-in.md`). */
export const identityProviders = sqliteTable(
  'identity_providers',
  {
    id: text('id').primaryKey(),
    tenantId: text('tenant_id').notNull(),
    kind: text('kind', { enum: PROVIDER_KINDS }).notNull(),
    name: text('name').notNull(),
    /** The `iss` of its ID tokens; never changed, because it is a part of the identity of its people. */
    issuer: text('issuer').notNull(),
    clientId: text('client_id').notNull(),
    /**
     * The client secret, sealed with AES-256-GCM. Associated data: `identity_provider`, provider id, key id.
     */
    keyId: text('key_id').notNull(),
    sealedSecret: text('sealed_secret').notNull(),
    defaultRole: text('default_role', { enum: ROLES }).notNull(),
    /** The claim that `roles` is about; null: everyone has the default role. */
    roleClaim: text('role_claim'),
    /** Role by value of the claim, in the order in which they are tried. */
    roles: text('roles', { mode: 'json' }).$type<[value: string, role: Role][]>().notNull(),
    /** SHA-256 of the bearer token of SCIM, hexadecimal; null: none was made. */
    scimTokenHash: text('scim_token_hash').unique(),
    /** Null: the platform operator. */
    createdBy: text('created_by').references(() => users.id),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [uniqueIndex('identity_providers_once').on(t.tenantId, t.issuer)],
);

/** The e-mail domains of a provider. A domain counts once it is verified. */
export const providerDomains = sqliteTable(
  'provider_domains',
  {
    providerId: text('provider_id')
      .notNull()
      .references(() => identityProviders.id, { onDelete: 'cascade' }),
    /** In lower case. */
    domain: text('domain').notNull(),
    tenantId: text('tenant_id').notNull(),
    /** What the TXT record has to say; random, so that only this tenant's record counts. */
    verification: text('verification').notNull(),
    verifiedAt: timestamp('verified_at'),
    createdAt: created(),
  },
  (t) => [
    primaryKey({ columns: [t.providerId, t.domain] }),
    uniqueIndex('provider_domains_verified').on(t.domain).where(sql`${t.verifiedAt} is not null`),
  ],
);

/** The people of a provider. A person is a user whose `gid` is this id. */
export const providerPeople = sqliteTable(
  'provider_people',
  {
    id: text('id').primaryKey(),
    providerId: text('provider_id')
      .notNull()
      .references(() => identityProviders.id, { onDelete: 'cascade' }),
    tenantId: text('tenant_id').notNull(),
    /** The `sub` of the provider; null until the first sign-in of a person that SCIM made. */
    subject: text('subject'),
    /** In lower case. */
    userName: text('user_name').notNull(),
    externalId: text('external_id'),
    /** In lower case. */
    email: text('email').notNull(),
    role: text('role').notNull(),
    /** The values of the role claim at the last sign-in. */
    claimValues: text('claim_values', { mode: 'json' }).$type<string[]>().notNull(),
    /** Whether SCIM made or adopted the person. */
    provisioned: integer('provisioned', { mode: 'boolean' }).notNull(),
    active: integer('active', { mode: 'boolean' }).notNull(),
    /** A person whom SCIM deleted cannot sign in until SCIM creates it again. */
    deletedAt: timestamp('deleted_at'),
    /** What SCIM sent about the person, apart from the columns. */
    attributes: text('attributes', { mode: 'json' }).$type<Record<string, unknown>>().notNull(),
    /** Raised when all sessions end: a sign-in that began before cannot be completed. */
    version: integer('version').notNull().default(0),
    signedInAt: timestamp('signed_in_at'),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [
    uniqueIndex('provider_people_subject').on(t.providerId, t.subject),
    index('provider_people_user_name').on(t.providerId, t.userName),
    index('provider_people_by_tenant').on(t.tenantId),
  ],
);

/** Groups that SCIM made, whose names map to roles as the values of a claim do. */
export const providerGroups = sqliteTable(
  'provider_groups',
  {
    id: text('id').primaryKey(),
    providerId: text('provider_id')
      .notNull()
      .references(() => identityProviders.id, { onDelete: 'cascade' }),
    displayName: text('display_name').notNull(),
    externalId: text('external_id'),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [uniqueIndex('provider_groups_name').on(t.providerId, t.displayName)],
);

export const providerGroupMembers = sqliteTable(
  'provider_group_members',
  {
    groupId: text('group_id')
      .notNull()
      .references(() => providerGroups.id, { onDelete: 'cascade' }),
    personId: text('person_id')
      .notNull()
      .references(() => providerPeople.id, { onDelete: 'cascade' }),
  },
  (t) => [
    primaryKey({ columns: [t.groupId, t.personId] }),
    index('provider_group_members_by_person').on(t.personId),
  ],
);

/** Tenants whose people have to sign in by their provider. */
export const signInPolicies = sqliteTable('sign_in_policies', {
  tenantId: text('tenant_id').primaryKey(),
  ssoRequired: integer('sso_required', { mode: 'boolean' }).notNull(),
  /** SHA-256 of the owners' recovery code, hexadecimal; null: used up. */
  recoveryHash: text('recovery_hash'),
  updatedAt: updated(),
});

export type ProviderRow = typeof identityProviders.$inferSelect;
export type ProviderDomainRow = typeof providerDomains.$inferSelect;
export type ProviderPersonRow = typeof providerPeople.$inferSelect;
export type ProviderGroupRow = typeof providerGroups.$inferSelect;
