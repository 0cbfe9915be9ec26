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

/** A caller that is no person: an API key, or a workload whose ID token a trust accepted. */
export interface Machine {
  type: 'key' | 'workload';
  /** ID of the key or of the trust. */
  id: string;
}

/** What a machine is limited to, in addition to its role. */
export interface MachineLimits extends Machine {
  /** The present role of the user who created it, which limits the projects in reach. */
  creatorRole: string;
  /** Null: every project that its role reaches. */
  projectId: string | null;
  /** Null: every branch. */
  branchPattern: string | null;
}

/** A bearer whose user, organization and membership exist (specification 5.9). */
export interface Principal extends Identity {
  tenantId: string;
  /** The user; for a machine the user who created it, in whose name it acts. */
  userId: string;
  machine?: MachineLimits;
}
