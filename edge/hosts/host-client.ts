import type { Failure, FailureCode } from '../../shared/failures.ts';
import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { fail, type Result } from '../../shared/result.ts';
import { BoundedMap } from '../bounded-map.ts';
import { repeatIfLost } from '../lost-object.ts';
import { missing } from '../missing.ts';
import { currentTraceparent } from '../trace.ts';

interface PublicFailure {
  code: FailureCode;
  /**
   * Envelope members that quote the host's message. Only calls that carry a client's own values have such
   * failures, and the message can quote a tenant's data, so it is not logged.
   */
  fields?: (failure: HostFailure) => Record<string, unknown>;
}

/** Fields of requests that have another name as a parameter of the call. */
const FIELDS = new Map([
  ['order', 'sort'],
  ['after', 'cursor'],
]);

const fieldOf = (path: string) => path.replace(/^\w+/, (name) => FIELDS.get(name) ?? name);

/** @param unnamed the field if the host names none, as agents of the previous version do */
const invalid = (unnamed: string): PublicFailure => ({
  code: 'VALIDATION_FAILED',
  fields: ({ message, path = unnamed }) => ({ details: [{ path: fieldOf(path), message }] }),
});

/** How the API reports each failure of a host. */
const PUBLIC_FAILURES: Record<HostFailureCode, PublicFailure> = {
  SOURCE_BUSY: { code: 'SOURCE_BUSY' },
  SOURCE_MISSING: { code: 'SOURCE_NOT_ACTIVE' },
  TABLE_NOT_FOUND: { code: 'NOT_FOUND' },
  ROW_NOT_FOUND: { code: 'ROW_NOT_FOUND' },
  ROW_CHANGED: { code: 'ROW_CHANGED' },
  COLUMN_NOT_FOUND: invalid('column'),
  KEY_NOT_UNIQUE: invalid('primary_key'),
  INVALID_CALL: invalid(''),
  STATEMENT_REFUSED: {
    code: 'STATEMENT_REFUSED',
    fields: ({ sqlstate, message, change, statement }) => ({
      sqlstate,
      message,
      ...(change !== undefined && { change }),
      // People count statements from one, as the other reports of statements do.
      ...(statement !== undefined && { statement: statement + 1 }),
    }),
  },
  LOGIN_REFUSED: {
    code: 'LOGIN_REFUSED',
    fields: ({ sqlstate, message }) => ({ sqlstate, postgres_message: message }),
  },
  TIME_LIMIT_REACHED: { code: 'TIME_LIMIT_REACHED' },
  DATABASE_NAME_HELD: { code: 'DATABASE_NAME_HELD' },
  PROOF_FAILED: { code: 'PROOF_FAILED' },
  POSTGRES_UNAVAILABLE: { code: 'DATABASE_SERVER_UNAVAILABLE' },
  POOLER_UNAVAILABLE: { code: 'DATABASE_SERVER_UNAVAILABLE' },
  RULES_NOT_APPLIED: { code: 'RULES_NOT_APPLIED' },
  HOST_BUSY: { code: 'HOST_BUSY' },
  PROJECT_BUSY: { code: 'PROJECT_BUSY' },
  HOST_FULL: { code: 'HOST_FULL' },
  COLLATION_OUTDATED: { code: 'COLLATION_OUTDATED' },
  INTERNAL: { code: 'INTERNAL' },
  HOST_UNAVAILABLE: { code: 'HOST_UNAVAILABLE' },
  HOST_UPGRADE_REQUIRED: { code: 'HOST_UPGRADE_REQUIRED' },
  HOST_TIMEOUT: { code: 'HOST_TIMEOUT' },
};

/** The failure of a call that carries values of the client's request. */
function failureOfRequest(failure: HostFailure, method: Method, params: object): Failure {
  const { code, fields } = PUBLIC_FAILURES[failure.code];
  if (fields) return { code, fields: fields(failure) };
  const table = 'table' in params && typeof params.table === 'string' ? params.table : undefined;
  return {
    ...(code === 'NOT_FOUND' && missing('table', table)),
    code,
    reason: `${method}: ${failure.message}`,
  };
}

/**
 * The failure of a call that the gateway made up itself: an invalid value in it is a defect of the gateway.
 */
export function failureOfOwnCall({
  code: hostCode,
  message,
}: Pick<HostFailure, 'code' | 'message'>): Failure {
  const { code, fields } = PUBLIC_FAILURES[hostCode];
  return { code: fields && code !== 'LOGIN_REFUSED' ? 'INTERNAL' : code, reason: `${hostCode}: ${message}` };
}

/** How a call of a host ended. */
export type CallOutcome<M extends Method> = Result<MethodResult<M>, HostFailure>;

/** The Durable Object that holds the link of one host; named by the host's ID. */
export interface HostLinkRpc extends Rpc.DurableObjectBranded {
  /** Returns whether an agent is linked and the host accepts work. */
  linked(): Promise<boolean>;
  /** Sends one operation to the agent. @param traceparent of the request that caused the call */
  call(method: Method, params: Params<Method>, traceparent?: string): Promise<CallOutcome<Method>>;
  /** The head of the project's measurements that this object keeps. */
  measurementHead(projectId: string): Promise<string | null>;
  /**
   * Lets the records decide what is dropped on the host, although they may have been restored from a backup.
   */
  acceptRecords(): Promise<void>;
  /** Compares the host with its records soon, and not at the next regular time. */
  reconcile(): Promise<void>;
  /**
   * Renews the lease of a primary whose standby may take its place by itself.
   * @param generation of its record
   * @param seconds until its standby may take its place
   * @returns false: its standby is about to take its place, or has
   */
  renewLease(generation: number, seconds: number): Promise<boolean>;
  /**
   * Forgets the lease, before the host learns that it needs none.
   * @param generation of the record by which it needs none
   * @returns false: its standby is about to take its place, or has
   */
  dropLease(generation: number): Promise<boolean>;
  /** Ends the link of a host that was removed, and forgets the host. */
  forget(): Promise<void>;
}

/** A call of a database host that failed. */
export class HostCallError extends Error {
  readonly code: HostFailureCode;

  constructor(code: HostFailureCode, message: string) {
    super(message);
    this.name = 'HostCallError';
    this.code = code;
  }
}

/** Calls an operation of one host. @throws HostCallError */
export type CallHost = <M extends Method>(method: M, params: Params<M>) => Promise<MethodResult<M>>;

/** The objects of the hosts' links, by host ID. */
export interface HostLinks {
  HOST_LINK: DurableObjectNamespace<HostLinkRpc>;
}

/** The object that holds the link of the host. */
export const hostLink = (env: HostLinks, hostId: string) =>
  env.HOST_LINK.get(env.HOST_LINK.idFromName(hostId));

/** Returns whether the host's agent is connected. */
export const isLinked = (env: HostLinks, hostId: string): Promise<boolean> =>
  repeatIfLost(() => hostLink(env, hostId).linked()).catch(() => false);

/** Never throws and always ends: the object's loss is a failure as well. */
async function send<M extends Method>(
  env: HostLinks,
  hostId: string,
  method: M,
  params: Params<M>,
): Promise<CallOutcome<M>> {
  try {
    return (await hostLink(env, hostId).call(method, params, currentTraceparent())) as CallOutcome<M>;
  } catch {
    return fail({ code: 'HOST_UNAVAILABLE', message: `the object of the link was lost during ${method}` });
  }
}

/** Calls operations of a host for the gateway itself. */
export const hostCaller =
  (env: HostLinks, hostId: string): CallHost =>
  async (method, params) => {
    const outcome = await send(env, hostId, method, params);
    if (!outcome.ok) throw new HostCallError(outcome.failure.code, outcome.failure.message);
    return outcome.value;
  };

/**
 * Calls an operation of a host with the values of a client's request, which gets the result or the failure.
 */
export async function callHostForClient<M extends Method>(
  env: HostLinks,
  hostId: string,
  method: M,
  params: Params<M>,
): Promise<Result<MethodResult<M>, Failure>> {
  const outcome = await send(env, hostId, method, params);
  return outcome.ok ? outcome : fail(failureOfRequest(outcome.failure, method, params));
}

const REMEMBERED_PROJECTS = 10_000;

const hostIds = new BoundedMap<string, string>(REMEMBERED_PROJECTS);

/**
 * Returns whether the host of a project is linked, found out concurrently with the query that reads the project: this
 * isolate remembers the project's host from the last read. If the guess is wrong, the right host is asked
 * afterwards.
 */
export async function isProjectHostLinked(
  env: HostLinks,
  projectId: string,
  reading: Promise<{ hostId: string }>,
): Promise<boolean> {
  const guess = hostIds.get(projectId);
  const guessed = guess !== undefined && isLinked(env, guess);
  const { hostId } = await reading;
  hostIds.set(projectId, hostId);
  return guess === hostId ? guessed : isLinked(env, hostId);
}
