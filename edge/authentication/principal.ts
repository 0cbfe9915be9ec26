/** What a verified token says about its bearer. */
export interface Identity {
  /** Address of the identity provider; a user is known by issuer and `gid`, never by e-mail. */
  issuer: string;
  gid: string;
  email: string;
  /** Already mapped (spec 5.7): one of `ROLES`, or the provider's own word, which may do nothing. */
  role: string;
  /** As in the token; only `<service>:read` and `<service>:write` mean anything here. */
  scopes: readonly string[];
  /** The `<service>` whose scopes count. */
  service: string;
  tenantId: string | null;
  /** `iat`, else `nbf`, else the epoch: tells an older token from a newer one when the tenant changes. */
  issuedAt: Date;
  /** The refresh family that the token came with; only tokens of the gateway's own have one. */
  sessionId?: string;
}

/** A bearer whose user, organization and membership exist (spec 5.9). */
export interface Principal extends Identity {
  tenantId: string;
  userId: string;
}
