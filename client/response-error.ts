/** A response that reports a failure. The API's own codes are listed at `/docs`. */
export class ResponseError extends Error {
  readonly status: number;
  /** For instance `NOT_FOUND`; null if the response is not from the API, for instance from a proxy. */
  readonly code: string | null;
  readonly requestId: string | null;
  /** Every field of the body, for instance `details`, `limit` or `job_id`. */
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(response: Response, body: unknown) {
    const fields = isRecord(body) ? body : {};
    const text = (name: string) => (typeof fields[name] === 'string' ? fields[name] : null);
    super(text('message') ?? text('error_description') ?? `The gateway responded with ${response.status}.`);
    this.name = 'ResponseError';
    this.status = response.status;
    this.code = text('error');
    this.requestId = text('request_id') ?? response.headers.get('X-Request-Id');
    this.fields = fields;
  }
}

/** A job that ended without success. */
export class JobError extends Error {
  readonly jobId: string;
  readonly code: string;

  constructor(job: { id: string; error: { code: string; message: string } | null }) {
    super(job.error?.message ?? 'The job failed.');
    this.name = 'JobError';
    this.jobId = job.id;
    this.code = job.error?.code ?? 'INTERNAL';
  }
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

interface Outcome<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The body of a successful response. @throws ResponseError */
export async function dataOf<T>(request: Promise<Outcome<T>>): Promise<T> {
  const { data, error, response } = await request;
  if (!response.ok) throw new ResponseError(response, error);
  return data as T;
}
