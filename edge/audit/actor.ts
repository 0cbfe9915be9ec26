import type { Machine } from '../authentication/principal.ts';

/** The author and the origin of a request, as recorded in audit events. */
export interface Actor {
  /** The user, or the user in whose name a machine acts. Records name it as `created_by`. */
  userId: string;
  /** The author of the audit event, if it is not the user. */
  machine?: Machine;
  email: string;
  tenantId: string;
  ip: string | null;
  userAgent: string | null;
  requestId: string;
  /** Of the request; a job continues its trace. */
  traceparent?: string;
}

/** The actor of an audit event; actions of the service itself have only a tenant. */
export type AuditActor = Pick<Actor, 'tenantId'> & {
  [F in Exclude<keyof Actor, 'tenantId' | 'machine' | 'traceparent'>]: Actor[F] | null;
} & Pick<Actor, 'machine' | 'traceparent'>;

export const noActor = (tenantId: string): AuditActor => ({
  userId: null,
  email: null,
  tenantId,
  ip: null,
  userAgent: null,
  requestId: null,
});

/** The client of a request: its address, its `User-Agent` and the request's ID. */
export type ClientDetails = Pick<Actor, 'ip' | 'userAgent' | 'requestId' | 'traceparent'>;

/** The actor of an audit row. @param user with `userId` null while it is not proven that the client is this user */
export const actorWith = <Id extends string | null>(
  client: ClientDetails,
  { userId, email, tenantId, machine }: { userId: Id; email: string; tenantId: string; machine?: Machine },
) => ({
  userId,
  email,
  tenantId,
  ...(machine && { machine: { type: machine.type, id: machine.id } }),
  ...client,
});

/** The author of an audit event. */
export function authorOf({ userId, email, machine }: AuditActor) {
  if (machine) return { actorType: machine.type, actorId: machine.id, actorEmail: null };
  return { actorType: userId === null ? null : ('user' as const), actorId: userId, actorEmail: email };
}
