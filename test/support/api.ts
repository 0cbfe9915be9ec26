import { checkResponse } from './contract.ts';

/** A response of the gateway: status, headers and body. */
export interface ApiResponse<B = Record<string, unknown>> {
  status: number;
  headers: Headers;
  body: B;
}

export interface BranchBody {
  id: string;
  branch_name: string;
  database_name: string;
  status: string;
  [field: string]: unknown;
}

export interface ProjectBody {
  id: string;
  main_branch: BranchBody;
  [field: string]: unknown;
}

export interface Credentials {
  database: string;
  database_url: string;
  direct_url: string;
  [field: string]: string;
}

interface CallOptions {
  body?: unknown;
  headers?: Record<string, string>;
}

/** Header that Cloudflare sets to the client's address; against the local stack the test sets it. */
export const FROM_LOOPBACK = { 'CF-Connecting-IP': '127.0.0.1' };

/** Headers that name this address, which any client can send. */
export const forgedAddress = (address: string): Record<string, string> => ({
  'X-Forwarded-For': `${address}, 192.0.2.200`,
  'X-Real-IP': address,
  'X-Client-IP': address,
  'True-Client-IP': address,
  'CF-Connecting-IPv6': address,
  'CF-Pseudo-IPv4': address,
  Forwarded: `for=${address}`,
});

/** A thin client of the gateway's API that checks each response against the API description. */
export class Api {
  readonly #baseUrl: string;
  readonly #token: string | null;

  constructor(baseUrl: string, token: string | null) {
    this.#baseUrl = baseUrl;
    this.#token = token;
  }

  async call<B = Record<string, unknown>>(
    method: string,
    path: string,
    { body, headers }: CallOptions = {},
  ): Promise<ApiResponse<B>> {
    const response = await fetch(`${this.#baseUrl}${path}`, {
      method,
      redirect: 'manual',
      headers: {
        ...(this.#token && { Authorization: `Bearer ${this.#token}` }),
        ...(body !== undefined && { 'Content-Type': 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    });
    const { status } = response;
    const bodyText = await response.text();
    checkResponse({ method, path, status, headers: response.headers, bodyText });
    const isJson = response.headers.get('Content-Type')?.match(/^application\/(?:scim\+)?json/);
    return {
      status,
      headers: response.headers,
      body: (isJson ? JSON.parse(bodyText) : bodyText || null) as B,
    };
  }

  /** The response itself, for instance a stream. It is not checked. */
  open(path: string, init: { headers?: Record<string, string>; signal?: AbortSignal } = {}) {
    const headers = { ...(this.#token && { Authorization: `Bearer ${this.#token}` }), ...init.headers };
    return fetch(`${this.#baseUrl}${path}`, { ...init, headers });
  }

  get<B = Record<string, unknown>>(path: string, options?: CallOptions): Promise<ApiResponse<B>> {
    return this.call('GET', path, options);
  }

  post<B = Record<string, unknown>>(
    path: string,
    body: unknown,
    headers?: Record<string, string>,
  ): Promise<ApiResponse<B>> {
    return this.call('POST', path, { body, ...(headers && { headers }) });
  }

  patch<B = Record<string, unknown>>(path: string, body: unknown): Promise<ApiResponse<B>> {
    return this.call('PATCH', path, { body });
  }

  delete<B = Record<string, unknown>>(path: string): Promise<ApiResponse<B>> {
    return this.call('DELETE', path);
  }

  async project(name: string, more: Record<string, unknown> = {}): Promise<ProjectBody> {
    return this.#created(await this.post<ProjectBody>('/api/v1/projects', { name, ...more }));
  }

  /** Creates a branch with the loopback as the creator's address, so that tests can connect immediately. */
  async branch(
    projectId: string,
    branch_name: string,
    more: Record<string, unknown> = {},
  ): Promise<BranchBody> {
    const path = `/api/v1/projects/${projectId}/branches`;
    return this.#created(await this.post<BranchBody>(path, { branch_name, ...more }, FROM_LOOPBACK));
  }

  /** Creates branches until the project's branch limit refuses one. */
  async fill(projectId: string): Promise<ApiResponse> {
    const path = `/api/v1/projects/${projectId}/branches`;
    for (let n = 1; ; n++) {
      const response = await this.post(path, { branch_name: `full-${n}` });
      if (response.status !== 201) return response;
    }
  }

  async allow(projectId: string, cidr = '127.0.0.1/32', branch_id: string | null = null) {
    const path = `/api/v1/projects/${projectId}/network-rules`;
    return this.#created(await this.post<{ id: string; status: string }>(path, { cidr, branch_id }));
  }

  /** Creates a webhook at an address on which nothing listens. */
  async webhook(project_id: string): Promise<string> {
    const wanted = { url: 'http://127.0.0.1:9/', events: ['storage.changed'], project_id };
    return this.#created(await this.post<{ id: string }>('/api/v1/webhooks', wanted)).id;
  }

  async credentials(projectId: string, branchRef: string, query = ''): Promise<Credentials> {
    const path = `/api/v1/projects/${projectId}/branches/${branchRef}/credentials${query}`;
    const response = await this.get<Credentials>(path);
    if (response.status !== 200)
      throw new Error(`${path}: ${response.status} ${JSON.stringify(response.body)}`);
    return response.body;
  }

  #created<B>(response: ApiResponse<B>): B {
    if (response.status !== 201) throw new Error(`${response.status} ${JSON.stringify(response.body)}`);
    return response.body;
  }
}
