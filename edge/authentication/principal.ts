/** The bearer, as described by a verified token. */
export interface Identity {
  /** URL of the identity provider. A user is identified by issuer and `gid`, never by e-mail. */
  issuer: string;
  gid: string;
  email: string;
  /** After mapping (specification 5.7): one of `ROLES`, or an unknown role of the provider without permissions. */
  role: string;
  /** As in the token; only `<service>:read` and `<service>:write` have an effect. */
  scopes: readonly string[];
  /** The `<service>` whose scopes count. */
  service: string;
  tenantId: string | null;
  /** `iat`, else `nbf`, else the epoch. Orders tokens when the tenant changes. */
  issuedAt: Date;
  /** `exp`. What outlasts its request, such as a stream, ends at this time. */
  expiresAt: Date;
  /** The refresh family of the token; only the gateway's own tokens have one. */
  sessionId?: string;
}

/** A bearer whose user, organization and membership exist (specification 5.9). */
export interface Principal extends Identity {
  tenantId: string;
  userId: string;
}
