import { z } from 'zod';

const RESOLVER = 'https://cloudflare-dns.com/dns-query';
const REQUEST_MS = 10_000;
const NXDOMAIN = 3;

const Response = z.object({
  Status: z.int(),
  Answer: z.array(z.object({ data: z.string() })).optional(),
});

/**
 * Whether a host name has an address. Asked by DNS over HTTPS (RFC 8484, as JSON), because the resolver of
 * this machine would remember for a long time that a new name did not exist.
 * @returns false as well if the resolver cannot be reached
 */
export async function isInUse(name: string): Promise<boolean> {
  const answers = await Promise.all(['A', 'AAAA'].map((type) => ask(name, type)));
  return answers.some(
    (answer) => answer !== null && answer.Status !== NXDOMAIN && (answer.Answer ?? []).length > 0,
  );
}

async function ask(name: string, type: string): Promise<z.output<typeof Response> | null> {
  try {
    const response = await fetch(`${RESOLVER}?${new URLSearchParams({ name, type })}`, {
      headers: { Accept: 'application/dns-json' },
      signal: AbortSignal.timeout(REQUEST_MS),
    });
    return Response.parse(await response.json());
  } catch {
    return null;
  }
}
