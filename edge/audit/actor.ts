/** The user and the origin of a request, as recorded in audit events. */
export interface Actor {
  userId: string;
  email: string;
  tenantId: string;
  ip: string | null;
  userAgent: string | null;
  requestId: string;
}

/** The actor of an audit event; actions of the service itself have only a tenant. */
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
