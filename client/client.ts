import createFetchClient, { type Client, type MaybeOptionalInit } from 'openapi-fetch';
import { CREATIONS, type components, type paths } from './api.ts';
import { Bookmark } from './bookmark.ts';
import type { StreamedEvent, StreamOptions } from './event-stream.ts';
import { type ListPath, type RecordOf, recordsOf } from './pages.ts';
import { dataOf, JobError } from './response-error.ts';
import { type SendOptions, sender, type TokenSource } from './send.ts';
import { sleep } from './sleep.ts';

export type Schemas = components['schemas'];
type Job = Schemas['Job'];

export interface ClientOptions extends Omit<SendOptions, 'token'> {
  /** Address of the gateway, for instance `https://api.example.com`. */
  url: string;
  /** An access token or an API key, or a function that provides one. Default: none. */
  token?: string | TokenSource;
}

export interface WaitOptions {
  signal?: AbortSignal;
  /** Called with the job each time that it is read. */
  onProgress?: (job: Job) => void;
}

type Json<Body> = { content: { 'application/json': Body } };

/** What a POST responds with at once, if it responds with 202 and a job when that takes long. */
type Created<P extends keyof paths> = paths[P] extends {
  post: { responses: infer R extends { 202: unknown } };
}
  ? R extends { 201: Json<infer Body> } | { 200: Json<infer Body> }
    ? Body
    : never
  : never;

/** Paths whose POST creates something, resets it or restores it. */
type CreationPath = { [P in keyof paths]: [Created<P>] extends [never] ? never : P }[keyof paths];

type CreationInit<P extends CreationPath> = MaybeOptionalInit<paths[P], 'post'>;

const POLL_FIRST_MS = 200;
const POLL_LAST_MS = 2_000;

/** The API of one gateway. */
export interface BranchgateClient {
  /**
   * Every operation by method and path; its result has `data` or `error`. `dataOf` turns an error into an
   * exception.
   */
  api: Client<paths, 'application/json'>;
  /** Every record of a list, page by page. */
  all<P extends ListPath>(path: P, init?: MaybeOptionalInit<paths[P], 'get'>): AsyncGenerator<RecordOf<P>>;
  /**
   * Creates, resets or restores something and waits until that is done, however long it takes.
   * @throws ResponseError, JobError
   */
  create<P extends CreationPath>(
    path: P,
    init: CreationInit<P> & { body?: unknown },
    options?: WaitOptions,
  ): Promise<Created<P>>;
  /** @throws JobError if the job failed */
  waitForJob(jobId: string, options?: WaitOptions): Promise<Job>;
  /**
   * The changes of a project, each once and in order. The data of `ready` (later changes follow) and of
   * `reset` (changes were missed: read the records again) is the ID of the project only; docs/events.md lists
   * the others.
   */
  events(projectId: string, options?: StreamOptions): AsyncGenerator<StreamedEvent>;
  /** The measurements of a project, or of one of its branches. */
  measurements(
    projectId: string,
    options?: StreamOptions & { branch?: string },
  ): AsyncGenerator<StreamedEvent>;
}

/**
 * Connects to a gateway. Retries what it asks to repeat, and sends an `Idempotency-Key` with each creation.
 */
export function createClient({ url, token, fetch, ...options }: ClientOptions): BranchgateClient {
  const source: TokenSource = typeof token === 'function' ? token : () => token ?? null;
  const bookmark = new Bookmark();
  const over = bookmark.over((request) => (fetch ?? globalThis.fetch)(request));
  const send = sender({ ...options, token: source, fetch: over });
  const base = url.replace(/\/+$/, '');
  const api = createFetchClient<paths, 'application/json'>({ baseUrl: base, fetch: send });
  api.use({
    onRequest({ request, schemaPath }) {
      const isCreation = request.method === 'POST' && CREATIONS.has(schemaPath);
      if (isCreation && !request.headers.has('Idempotency-Key'))
        request.headers.set('Idempotency-Key', crypto.randomUUID());
    },
  });

  async function waitForJob(jobId: string, { signal, onProgress }: WaitOptions = {}): Promise<Job> {
    for (let pauseMs = POLL_FIRST_MS; ; pauseMs = Math.min(pauseMs * 1.5, POLL_LAST_MS)) {
      const init = { params: { path: { job_id: jobId } }, ...(signal && { signal }) };
      const job = await dataOf(api.GET('/api/v1/jobs/{job_id}', init));
      onProgress?.(job);
      if (job.status === 'succeeded') return job;
      if (job.status === 'failed') throw new JobError(job);
      await sleep(pauseMs, signal);
    }
  }

  // Loaded when it is needed: a page that reads no stream does not load its parser.
  async function* stream(address: string, options: StreamOptions): AsyncGenerator<StreamedEvent> {
    const { streamEvents } = await import('./event-stream.ts');
    for await (const event of streamEvents(address, send, options)) {
      // What is read because of it must not be older.
      bookmark.expectChanges();
      yield event;
    }
  }

  return {
    api,
    waitForJob,

    all<P extends ListPath>(path: P, init?: MaybeOptionalInit<paths[P], 'get'>) {
      // The generic call is checked where it is made: `init` follows from `path`.
      const get = api.GET as (path: string, init: object) => ReturnType<typeof api.GET>;
      const { params, ...rest } = (init ?? {}) as { params?: { query?: object } };
      return recordsOf<RecordOf<P>>(async (cursor) => {
        const query = { ...params?.query, ...(cursor !== null && { cursor }) };
        return (await dataOf(get(path, { ...rest, params: { ...params, query } }))) as Record<
          string,
          unknown
        >;
      });
    },

    async create(path, init, wait = {}) {
      const post = api.POST as unknown as (
        path: string,
        init: object,
      ) => Promise<{ data?: unknown; error?: unknown; response: Response }>;
      const headers = { 'Idempotency-Key': crypto.randomUUID() };
      const request = { ...init, headers, ...(wait.signal && { signal: wait.signal }) };
      while (true) {
        const { data, response, error } = await post(path, request);
        const body = await dataOf(Promise.resolve({ data, error, response }));
        if (response.status !== 202) return body as never;
        // The same key then gets the response that the creation would have had.
        await waitForJob((body as Job).id, wait);
      }
    },

    events: (projectId, options = {}) =>
      stream(`${base}/api/v1/projects/${encodeURIComponent(projectId)}/events`, options),

    measurements(projectId, { branch, ...options } = {}) {
      const project = `${base}/api/v1/projects/${encodeURIComponent(projectId)}`;
      const subject = branch === undefined ? project : `${project}/branches/${encodeURIComponent(branch)}`;
      return stream(`${subject}/metrics/stream`, options);
    },
  };
}
