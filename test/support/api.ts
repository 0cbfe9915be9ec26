import { checkResponse } from './contract.ts';

/** What the gateway answered: status, headers and body. */
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

/** Header that Cloudflare sets; locally the test is the one who says where a request comes from. */
export const FROM_LOOPBACK = { 'CF-Connecting-IP': '127.0.0.1' };

/** A client of the gateway's API, as thin as `fetch`, save that each answer must be as the API describes it. */
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
    const isJson = response.headers.get('Content-Type')?.startsWith('application/json');
    return {
      status,
      headers: response.headers,
      body: (isJson ? JSON.parse(bodyText) : bodyText || null) as B,
    };
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
    return this.#made(await this.post<ProjectBody>('/api/v1/projects', { name, ...more }));
  }

  /** A branch whose creator's address is the loopback's, so that tests can connect to it at once. */
  async branch(
    projectId: string,
    branch_name: string,
    more: Record<string, unknown> = {},
  ): Promise<BranchBody> {
    const path = `/api/v1/projects/${projectId}/branches`;
    return this.#made(await this.post<BranchBody>(path, { branch_name, ...more }, FROM_LOOPBACK));
  }

  async allow(projectId: string, cidr = '127.0.0.1/32', branch_id: string | null = null) {
    const path = `/api/v1/projects/${projectId}/network-rules`;
    return this.#made(await this.post<{ id: string; status: string }>(path, { cidr, branch_id }));
  }

  async credentials(projectId: string, branchRef: string, query = ''): Promise<Credentials> {
    const path = `/api/v1/projects/${projectId}/branches/${branchRef}/credentials${query}`;
    const answer = await this.get<Credentials>(path);
    if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }

  #made<B>(answer: ApiResponse<B>): B {
    if (answer.status !== 201) throw new Error(`${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }
}
