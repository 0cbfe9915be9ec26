import { z } from 'zod';
import type { Settings } from '../settings.ts';

const REQUEST_MS = 10_000;
/** Large, because Cloudflare counts calls: 1,200 in five minutes. */
const PAGE_SIZE = 5_000;

/** A record of a zone; `ttl` in seconds. `comment` says who made it. */
const DnsRecord = z.object({
  id: z.string(),
  type: z.string(),
  name: z.string(),
  content: z.string(),
  ttl: z.number(),
  comment: z.string().nullish(),
});
export type DnsRecord = z.output<typeof DnsRecord>;

const Listed = z.object({
  success: z.literal(true),
  result: z.array(DnsRecord),
  result_info: z.object({ total_pages: z.int() }).optional(),
});

/** A record to be written. */
export type NewDnsRecord = Omit<DnsRecord, 'id' | 'comment'> & { comment: string };

export type DnsSettings = Pick<Settings, 'DNS_API_TOKEN' | 'DNS_API_URL' | 'DNS_ZONE_ID'>;

/** The zone of the settings; null if they have none. */
export const dnsZone = ({
  DNS_API_TOKEN: token,
  DNS_API_URL: url,
  DNS_ZONE_ID: zone,
}: DnsSettings): DnsZone | null =>
  token === undefined || zone === undefined ? null : new DnsZone(`${url}/zones/${zone}/dns_records`, token);

/** The records of a zone of Cloudflare. Each method throws an Error if Cloudflare refuses or does not respond. */
export class DnsZone {
  readonly #url: string;
  readonly #token: string;

  constructor(url: string, token: string) {
    this.#url = url;
    this.#token = token;
  }

  /** @param filter parameters of Cloudflare's list, for instance `name` */
  async list(filter: Record<string, string>): Promise<DnsRecord[]> {
    const found: DnsRecord[] = [];
    for (let page = 1; ; page += 1) {
      const query = new URLSearchParams({ ...filter, per_page: String(PAGE_SIZE), page: String(page) });
      const { result, result_info } = Listed.parse(await this.#call('GET', `?${query}`));
      found.push(...result);
      if (page >= (result_info?.total_pages ?? 1)) return found;
    }
  }

  async add(record: NewDnsRecord): Promise<void> {
    await this.#call('POST', '', { ...record, proxied: false });
  }

  /** Replaces a record, so that its name has an address at every time. */
  async replace(id: string, record: NewDnsRecord): Promise<void> {
    await this.#call('PUT', `/${id}`, { ...record, proxied: false });
  }

  /** A record that is gone already is no error. */
  async remove(id: string): Promise<void> {
    await this.#call('DELETE', `/${id}`, undefined, [404]);
  }

  async #call(
    method: string,
    path: string,
    body?: object,
    accepted: readonly number[] = [],
  ): Promise<unknown> {
    const response = await fetch(this.#url + path, {
      method,
      headers: { Authorization: `Bearer ${this.#token}`, 'Content-Type': 'application/json' },
      signal: AbortSignal.timeout(REQUEST_MS),
      ...(body && { body: JSON.stringify(body) }),
    });
    const reply: unknown = await response.json().catch(() => null);
    if (!response.ok && !accepted.includes(response.status))
      throw new Error(`${method} of a DNS record: ${response.status} ${JSON.stringify(reply)}`);
    return reply;
  }
}
