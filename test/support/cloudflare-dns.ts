import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface StoredRecord {
  id: string;
  type: string;
  name: string;
  content: string;
  ttl?: number;
  comment?: string;
  proxied?: boolean;
}

const LOWEST_TTL = 60;

/** Cloudflare stores addresses in their canonical spelling. */
function stored({ type, content }: StoredRecord): string {
  if (type === 'AAAA') return new URL(`http://[${content}]`).hostname.slice(1, -1);
  return type === 'CNAME' ? content.toLowerCase() : content;
}

/** The records of one zone of Cloudflare, by the part of its API that the gateway uses, on loopback. */
export class CloudflareDns {
  records: StoredRecord[] = [];
  isRefusing = false;
  /** Runs before the next call is answered. */
  beforeNext: (() => Promise<unknown>) | null = null;
  /** Methods of the calls that changed a record. */
  changes: string[] = [];
  /** Filters of the calls that listed records. */
  lists: URLSearchParams[] = [];
  readonly token = 'token-of-the-zone';
  readonly zone = 'zone';
  #url = '';
  readonly #server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const first = this.beforeNext;
    this.beforeNext = null;
    await first?.();
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://dns');
    const [, zone, id] = /^\/zones\/(\w+)\/dns_records(?:\/(.+))?$/.exec(pathname) ?? [];
    const isAllowed = request.headers.authorization === `Bearer ${this.token}` && zone === this.zone;
    const { status, ...reply } =
      !isAllowed || this.isRefusing
        ? { status: 403, success: false }
        : this.#reply(request.method ?? '', id, searchParams, Buffer.concat(chunks).toString());
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(reply));
  });

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    this.#url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return this;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /** The settings of a gateway that uses this zone. */
  get settings() {
    return { DNS_API_TOKEN: this.token, DNS_ZONE_ID: this.zone, DNS_API_URL: this.#url };
  }

  /** As a resolver does, which follows names of the zone. @returns an address, or a name outside the zone; null if there is none */
  resolve(name: string): string | null {
    const found = this.records.find((record) => record.name === name && record.type !== 'TXT');
    return found ? (this.resolve(found.content) ?? found.content) : null;
  }

  #reply(method: string, id: string | undefined, query: URLSearchParams, body: string) {
    if (method === 'GET') {
      this.lists.push(query);
      return this.#list(query);
    }
    this.changes.push(method);
    const present = this.records.find((record) => record.id === id);
    if (method !== 'POST' && !present) return { status: 404, success: false };
    const others = this.records.filter((record) => record !== present);
    if (method === 'DELETE') {
      this.records = others;
      return { status: 200, success: true, result: { id } };
    }
    const record = { id: id ?? crypto.randomUUID(), ...JSON.parse(body) } as StoredRecord;
    record.content = stored(record);
    const sharing = others.filter(({ name, type }) => name === record.name && type !== 'TXT');
    const excludes = ({ type }: StoredRecord) => type === 'CNAME' || record.type === 'CNAME';
    const isConflict = record.type !== 'TXT' && sharing.some(excludes);
    if (isConflict || (record.ttl ?? 1) < LOWEST_TTL) return { status: 400, success: false };
    this.records = [...others, record];
    return { status: 200, success: true, result: record };
  }

  #list(query: URLSearchParams) {
    const wanted = (
      filter: string,
      value: string | undefined,
      matches: (value: string, text: string) => boolean,
    ) => query.get(filter) === null || matches(value ?? '', query.get(filter) ?? '');
    const isEqual = (value: string, text: string) => value === text;
    const found = this.records.filter(
      ({ type, name, comment }) =>
        wanted('type', type, isEqual) &&
        wanted('name', name, isEqual) &&
        wanted('name.endswith', name, (value, text) => value.endsWith(text)) &&
        wanted('comment.startswith', comment, (value, text) => value.startsWith(text)),
    );
    const size = Number(query.get('per_page') ?? 100);
    const page = Number(query.get('page') ?? 1);
    return {
      status: 200,
      success: true,
      result: found.slice((page - 1) * size, page * size).map((record) => ({ ttl: 1, ...record })),
      result_info: { total_pages: Math.max(1, Math.ceil(found.length / size)) },
    };
  }
}
