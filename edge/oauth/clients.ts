import { and, eq, gt, lte, not, or, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { printableLine } from '../../shared/printable.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { fetchDocument, KEY_FETCH_MS } from '../authentication/provider-keys.ts';
import { BoundedMap } from '../bounded-map.ts';
import type { Database, Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type OAuthClientRow, oauthClients, oauthGrants } from '../database/oauth-schema.ts';
import { isLocalGateway } from '../destination.ts';
import { issuerAddressProblem } from '../machines/trusts.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, type Limiters } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import { redirectUriProblem } from './redirect-uri.ts';

/**
 * The clients that people can sign in to the Model Context Protocol. A client is known by the URL of its metadata document, or
 * by the ID of its registration. Neither proves who it is: what people can rely on is the host of the redirect.
 */

export interface OAuthClient {
  id: string;
  /** As the client calls itself. */
  name: string;
  redirectUris: readonly string[];
}

export const CLIENT_ID_LENGTH_MAX = 256;
const REDIRECT_URIS_MAX = 10;
const NAME_LENGTH_MAX = 100;

const RedirectUri = z.string().superRefine((text, context) => {
  const problem = redirectUriProblem(text);
  if (problem !== null) context.addIssue({ code: 'custom', message: problem });
});

/** Names of others are shown on the consent page, where their characters must not reorder or hide text. */
const ClientName = z
  .string()
  .transform((name) => printableLine(name).trim().slice(0, NAME_LENGTH_MAX))
  .pipe(z.string().min(1));

const CODE_GRANT = ['authorization_code', 'refresh_token'];

/** The metadata of a registration (RFC 7591 section 2). Other members are ignored. */
export const ClientMetadata = z.object({
  redirect_uris: z.array(RedirectUri).min(1).max(REDIRECT_URIS_MAX),
  client_name: ClientName.optional(),
});

const DOCUMENT_REDIRECT_URIS_MAX = 100;

/**
 * A metadata document. It is for every gateway, so redirect addresses that are not allowed here are left out. The client has no
 * secret, as every client here.
 */
const ClientDocument = z.object({
  client_id: z.string(),
  client_name: ClientName.optional(),
  redirect_uris: z
    .array(z.string())
    .max(DOCUMENT_REDIRECT_URIS_MAX)
    .transform((uris) => uris.filter((uri) => redirectUriProblem(uri) === null))
    .pipe(z.array(z.string()).min(1)),
  token_endpoint_auth_method: z.literal('none').optional(),
});

/** What a registered client learns about itself. */
export const registrationOf = ({ id, name, redirectUris, createdAt }: OAuthClientRow) => ({
  client_id: id,
  client_id_issued_at: Math.floor(createdAt.getTime() / 1000),
  client_name: name,
  redirect_uris: redirectUris,
  token_endpoint_auth_method: 'none' as const,
  grant_types: CODE_GRANT,
  response_types: ['code'],
});

const CLIENTS_MAX = 10_000;
const UNUSED_MS = 86_400_000;

const hasGrant: SQL = sql`exists (select 1 from ${oauthGrants} where ${oauthGrants.clientId} = ${oauthClients.id})`;

/** A client that nobody has let act, or lets act any more, is gone after a day. */
const isKept = (now: Date) => or(gt(oauthClients.lastUsedAt, new Date(now.getTime() - UNUSED_MS)), hasGrant);

export const deleteUnusedClients = (db: Database, now: Date): Statement & PromiseLike<unknown> =>
  db
    .delete(oauthClients)
    .where(and(lte(oauthClients.lastUsedAt, new Date(now.getTime() - UNUSED_MS)), not(hasGrant)));

/** Registers a client, under an ID that nobody chose. @returns or OAUTH_CLIENT_LIMIT_REACHED */
export async function registerClient(
  db: Database,
  { redirect_uris, client_name }: z.output<typeof ClientMetadata>,
  now: Date,
): Promise<Result<OAuthClientRow, Failure>> {
  const [first = ''] = redirect_uris;
  const row = {
    id: crypto.randomUUID(),
    name: client_name ?? new URL(first).host,
    redirectUris: redirect_uris,
    lastUsedAt: now,
    createdAt: now,
  };
  await deleteUnusedClients(db, now);
  const count = sql`(select count(*) from ${oauthClients})`;
  const written = await guardedWrite(db, {
    decides: [oauthClients, row],
    require: [[sql`${count} < ${CLIENTS_MAX}`, 'OAUTH_CLIENT_LIMIT_REACHED']],
  });
  return written.ok ? ok(row) : written;
}

const unknown = (description: string, reason: string) =>
  fail<Failure>({ code: 'invalid_client', fields: { error_description: description }, reason });

/** Whether the ID of a client is the URL of its metadata document. */
export const isDocumentUrl = (clientId: string): boolean => /^https?:/.test(clientId);

/** The client that registered itself. @returns or invalid_client */
export async function registeredClient(
  db: Database,
  id: string,
  now: Date,
): Promise<Result<OAuthClient, Failure>> {
  const [row] = await db
    .select()
    .from(oauthClients)
    .where(and(eq(oauthClients.id, id), isKept(now)));
  if (row) return ok(row);
  return unknown(
    'The client is not registered, or its registration has expired. Remove its stored sign-in, so that it registers again.',
    'no such client',
  );
}

/** What is wrong with the URL of a metadata document; null if nothing is. */
export function documentUrlProblem(settings: Settings, url: string): string | null {
  const problem = issuerAddressProblem(url, isLocalGateway(settings));
  if (problem !== null) return problem;
  const { href, pathname } = new URL(url);
  if (pathname === '/') return 'must have a path';
  return href === url ? null : 'is not in its normal form';
}

const CACHED_DOCUMENTS = 1_000;
const CACHED_MS = 3_600_000;
const documents = new BoundedMap<string, { client: OAuthClient; until: number }>(CACHED_DOCUMENTS);

interface ClientRequest {
  limiters: Limiters;
  settings: Settings;
  db: Database;
  /** Who wants to sign the client in, and from where: both are counted if a document has to be fetched. */
  userId: string;
  address: string | null;
  now: Date;
}

/**
 * The client with this ID. The document of a client is fetched for people who have signed in only, because its address is
 * chosen by the maker of the link to the consent page.
 * @returns or invalid_client, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function clientById(request: ClientRequest, id: string): Promise<Result<OAuthClient, Failure>> {
  const { limiters, settings, db, userId, address, now } = request;
  if (!isDocumentUrl(id)) return registeredClient(db, id, now);
  const problem = documentUrlProblem(settings, id);
  if (problem !== null) return unknown(`The client_id ${problem}.`, 'address');
  const cached = documents.get(id);
  if (cached && now.getTime() < cached.until) return ok(cached.client);
  for (const bucket of [bucketOf.clientDocument(userId), bucketOf.clientDocumentFrom(address)]) {
    const counted = await enforce(limiters, bucket);
    if (!counted.ok) return counted;
  }
  try {
    const document = ClientDocument.parse(
      await fetchDocument(new URL(id), AbortSignal.timeout(KEY_FETCH_MS)),
    );
    if (document.client_id !== id) throw new Error('the document is of another client');
    const client = {
      id,
      name: document.client_name ?? new URL(id).host,
      redirectUris: document.redirect_uris,
    };
    documents.set(id, { client, until: now.getTime() + CACHED_MS });
    return ok(client);
  } catch (error) {
    // The reason stays in the log: it would tell what answers at the address.
    return unknown(
      'The metadata document at the client_id cannot be used: it does not answer within 5 seconds with at most 64 KiB of JSON, names another client_id, or has redirect addresses that are not allowed.',
      error instanceof Error ? error.message : String(error),
    );
  }
}
