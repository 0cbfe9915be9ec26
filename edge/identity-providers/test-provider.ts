import { z } from 'zod';
import type { ProviderRow } from '../database/company-schema.ts';
import type { Settings } from '../settings.ts';
import { discoverProvider } from './openid.ts';
import type { ProviderWithDomains } from './provider.ts';
import { fetchFromProvider, providerFailure } from './provider-fetch.ts';

const Check = z.strictObject({
  name: z.enum(['discovery', 'endpoints', 'keys', 'domains']),
  ok: z.boolean(),
  message: z.string().meta({ description: 'What was found, or what is wrong and what to do.' }),
});

export const ProviderTest = z
  .strictObject({
    ok: z.boolean().meta({ description: 'Whether all checks passed.' }),
    checks: z.array(Check),
  })
  .meta({ id: 'IdentityProviderTest' });

type Check = z.output<typeof Check>;

const KeySet = z.object({ keys: z.array(z.object({ kty: z.string(), kid: z.string().optional() })).min(1) });

/** Runs one check; its error is the finding. */
async function check(name: Check['name'], work: () => Promise<string>): Promise<Check> {
  try {
    return { name, ok: true, message: await work() };
  } catch (error) {
    const { code, reason } = providerFailure(error);
    const message = error instanceof Error ? error.message : (reason ?? code);
    return { name, ok: false, message };
  }
}

/** Reads discovery and keys of a provider, and says what is wrong. Nothing is signed in. */
export async function testProvider(
  { provider, domains }: ProviderWithDomains,
  settings: Settings,
): Promise<z.output<typeof ProviderTest>> {
  const remote =
    provider.kind === 'github' ? await gitHubChecks(settings) : await openIdChecks(provider, settings);
  const pending = domains.filter(({ verifiedAt }) => verifiedAt === null).map(({ domain }) => domain);
  const domainCheck: Check = {
    name: 'domains',
    ok: domains.length > pending.length,
    message:
      pending.length === 0
        ? `verified: ${domains.map(({ domain }) => domain).join(', ')}`
        : `not verified yet: ${pending.join(', ')}. Publish the TXT record, then verify the domain.`,
  };
  const checks = [...remote, domainCheck];
  return { ok: checks.every((each) => each.ok), checks };
}

async function openIdChecks(provider: ProviderRow, settings: Settings): Promise<Check[]> {
  let server: Awaited<ReturnType<typeof discoverProvider>> | undefined;
  const discovery = await check('discovery', async () => {
    server = await discoverProvider(provider, settings);
    return `The discovery document is of ${server.issuer}, and signs with ${server.id_token_signing_alg_values_supported?.join(', ')}.`;
  });
  if (!server) return [discovery];
  const found = server;
  const endpoints = await check('endpoints', async () => {
    const missing = (['authorization_endpoint', 'token_endpoint', 'jwks_uri'] as const).filter(
      (name) => !found[name],
    );
    if (missing.length > 0) throw new Error(`The discovery document lacks ${missing.join(', ')}.`);
    return 'Authorization, token and key endpoints are there.';
  });
  const keys = await check('keys', async () => {
    const response = await fetchFromProvider(found.jwks_uri ?? '', {}, settings);
    if (!response.ok) throw new Error(`The key endpoint responded with status ${response.status}.`);
    const set = KeySet.safeParse(await response.json().catch(() => null));
    const usable = (set.data?.keys ?? []).filter(({ kty }) => kty !== 'oct');
    if (usable.length === 0) throw new Error('The key endpoint has no public key.');
    return `${usable.length} public ${usable.length === 1 ? 'key' : 'keys'}.`;
  });
  return [discovery, endpoints, keys];
}

const gitHubChecks = async (settings: Settings): Promise<Check[]> => [
  await check('discovery', async () => {
    const init = { headers: { 'User-Agent': 'branchgate' } };
    const response = await fetchFromProvider(`${settings.GITHUB_API_URL}/zen`, init, settings);
    if (response.status >= 500) throw new Error(`GitHub's API responded with status ${response.status}.`);
    return "GitHub's API responds.";
  }),
];
