/** Who does something, and from where; stands in the audit row of what they did. */
export interface Actor {
  userId: string;
  email: string;
  tenantId: string;
  ip: string | null;
  userAgent: string | null;
  requestId: string;
}

/** Who an audit row names: of what the service does by itself, the tenant alone. */
export type AuditActor = Pick<Actor, 'tenantId'> & {
  [F in Exclude<keyof Actor, 'tenantId'>]: Actor[F] | null;
};

export const noActor = (tenantId: string): AuditActor => ({
  userId: null,
  email: null,
  tenantId,
  ip: null,
  userAgent: null,
  requestId: null,
});

/** The client of a request: its address, its `User-Agent` and the request's ID. */
export type ClientDetails = Pick<Actor, 'ip' | 'userAgent' | 'requestId'>;

/** The actor of an audit row. @param user with `userId` null while it is not proven that the client is this user */
export const actorWith = <Id extends string | null>(
  client: ClientDetails,
  { userId, email, tenantId }: { userId: Id; email: string; tenantId: string },
) => ({ userId, email, tenantId, ...client });
