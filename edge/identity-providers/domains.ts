import { and, eq, isNotNull, isNull } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import {
  identityProviders,
  type ProviderRow,
  providerDomains,
  signInPolicies,
} from '../database/company-schema.ts';
import { type Database, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { domainOf } from './claims.ts';
import { type ProviderRequest, type ProviderWithDomains, providerOf, txtRecordOf } from './provider.ts';

/** The provider whose verified domain an address is in, and whether its tenant requires it. */
export interface ProviderOfAddress {
  provider: ProviderRow;
  required: boolean;
}

/** By the domain alone, so that the result says nothing about accounts. */
export async function providerOfAddress(db: Database, email: string): Promise<ProviderOfAddress | null> {
  const [row] = await db
    .select({ provider: identityProviders, required: signInPolicies.ssoRequired })
    .from(providerDomains)
    .innerJoin(identityProviders, eq(identityProviders.id, providerDomains.providerId))
    .leftJoin(signInPolicies, eq(signInPolicies.tenantId, identityProviders.tenantId))
    .where(and(eq(providerDomains.domain, domainOf(email)), isNotNull(providerDomains.verifiedAt)));
  return row ? { provider: row.provider, required: row.required ?? false } : null;
}

/** Whether an address is in a verified domain of this tenant, or of any if it is left out. */
export async function isInVerifiedDomain(db: Database, email: string, tenantId?: string): Promise<boolean> {
  const found = await providerOfAddress(db, email);
  return found !== null && (tenantId === undefined || found.provider.tenantId === tenantId);
}

/** The domains of a provider that count. */
export async function verifiedDomains(db: Database, providerId: string): Promise<string[]> {
  const rows = await db
    .select({ domain: providerDomains.domain })
    .from(providerDomains)
    .where(and(eq(providerDomains.providerId, providerId), isNotNull(providerDomains.verifiedAt)));
  return rows.map(({ domain }) => domain);
}

const DNS_TIMEOUT_MS = 5_000;
const TXT = 16;
/** RFC 8484's JSON sibling, as Cloudflare and Google have it. */
const Answers = z.object({
  Status: z.int(),
  Answer: z.array(z.object({ type: z.int(), data: z.string() })).optional(),
});

/** The text of a TXT record: its strings of at most 255 bytes, joined. */
const textOf = (data: string) =>
  data.startsWith('"') ? [...data.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(([, text]) => text).join('') : data;

async function txtRecords(
  { DNS_OVER_HTTPS_URL }: Settings,
  domain: string,
): Promise<Result<string[], Failure>> {
  const url = new URL(DNS_OVER_HTTPS_URL);
  url.searchParams.set('name', domain);
  url.searchParams.set('type', 'TXT');
  try {
    const response = await fetch(url, {
      headers: { Accept: 'application/dns-json' },
      redirect: 'manual',
      signal: AbortSignal.timeout(DNS_TIMEOUT_MS),
    });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const { Answer = [] } = Answers.parse(await response.json());
    return ok(Answer.filter(({ type }) => type === TXT).map(({ data }) => textOf(data)));
  } catch (error) {
    return fail({ code: 'DOMAIN_LOOKUP_FAILED', reason: (error as Error).message });
  }
}

/**
 * Verifies a domain of a provider. A domain belongs to one provider of one tenant.
 * @param by `dns` reads the TXT record; the `operator` says so
 * @returns or NOT_FOUND, DOMAIN_NOT_VERIFIED, DOMAIN_TAKEN, DOMAIN_LOOKUP_FAILED
 */
export async function verifyDomain(
  { db, settings, tenantId, actor, now }: ProviderRequest,
  providerId: string,
  domain: string,
  by: 'dns' | 'operator',
): Promise<Result<ProviderWithDomains, Failure>> {
  const found = await providerOf(db, tenantId, providerId);
  if (!found.ok) return found;
  const row = found.value.domains.find((candidate) => candidate.domain === domain);
  if (!row) return fail({ code: 'NOT_FOUND' });
  if (row.verifiedAt !== null) return found;
  if (by === 'dns') {
    const records = await txtRecords(settings, domain);
    if (!records.ok) return records;
    const wanted = txtRecordOf(row);
    if (!records.value.includes(wanted))
      return fail({ code: 'DOMAIN_NOT_VERIFIED', fields: { txt_record: wanted } });
  }
  const isIt = and(
    eq(providerDomains.providerId, providerId),
    eq(providerDomains.domain, domain),
    eq(providerDomains.verification, row.verification),
  );
  const metadata = { provider_id: providerId, domain, by };
  const written = await guardedWrite(db, {
    decides: [auditEvents, auditEvent('identity_provider.domain.verified', actor, { metadata }, now)],
    require: [[isThere(providerDomains, isIt), 'NOT_FOUND']],
    rest: (isWritten) => [
      db
        .update(providerDomains)
        .set({ verifiedAt: now })
        .where(and(isIt, isNull(providerDomains.verifiedAt), isWritten)),
    ],
    conflicts: { provider_domains: 'DOMAIN_TAKEN' },
  });
  return written.ok ? providerOf(db, tenantId, providerId) : written;
}
