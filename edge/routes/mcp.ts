import { Hono } from 'hono';
import { z } from 'zod';
import { createClient } from '../../client/client.ts';
import { MCP_PATH } from '../authentication/own-tokens.ts';
import { ApiError } from '../errors.ts';
import { logEvent } from '../log.ts';
import type { AppContext, AppEnv } from '../pipeline/context.ts';
import { requireAdmission } from '../pipeline/limits.ts';
import { readSettings } from '../settings.ts';
import { currentTraceparent } from '../trace.ts';

const VERSION = '1';

/**
 * Headers of the caller that its requests to the API have too, for network rules and the audit log. Not its token: the pipeline
 * hands on whom it authenticated.
 */
const PASSED_ON = ['cf-connecting-ip', 'user-agent'];

/** The project of calls that name none: `/mcp?project_id=…`; default: the only one of the credential. */
const Query = z.strictObject({ project_id: z.uuid().toLowerCase().optional() });

/**
 * Refuses pages of other origins, which DNS rebinding lets reach a server behind a firewall. Programs send no
 * `Origin`.
 * @throws ApiError CROSS_ORIGIN_REQUEST
 */
function requireKnownOrigin(c: AppContext): void {
  const origin = c.req.header('origin');
  const { BASE_URL, CORS_ORIGINS } = readSettings(c.env);
  if (origin !== undefined && ![BASE_URL, ...CORS_ORIGINS].includes(origin))
    throw new ApiError('CROSS_ORIGIN_REQUEST');
}

function projectOf(c: AppContext): string | null {
  const query = Query.safeParse(c.req.query());
  if (query.success) return query.data.project_id ?? c.var.principal.machine?.projectId ?? null;
  const details = [{ path: 'project_id', message: 'must be the ID of a project, and the only parameter' }];
  throw new ApiError('VALIDATION_FAILED', { details });
}

/**
 * The Model Context Protocol over HTTP, without sessions. A tool sends requests to the API in the name of
 * its caller, so that roles, limits and the audit log are those of the API.
 * @param api handles a request as if the caller had sent it
 */
export function mcpRoutes(api: (c: AppContext, request: Request) => Promise<Response>) {
  return new Hono<AppEnv>().all(MCP_PATH, async (c) => {
    requireKnownOrigin(c);
    await requireAdmission(c);
    const project = projectOf(c);
    const client = createClient({
      url: readSettings(c.env).BASE_URL,
      // The caller decides whether to wait: a tool that waits for its limit holds a request open.
      retryForSeconds: 0,
      async fetch(request) {
        for (const name of PASSED_ON) {
          const value = c.req.header(name);
          if (value !== undefined) request.headers.set(name, value);
        }
        request.headers.set('x-request-id', c.var.requestId);
        const traceparent = currentTraceparent();
        if (traceparent !== undefined) request.headers.set('traceparent', traceparent);
        return api(c, request);
      },
    });
    const onFailure = (error: unknown) => {
      const reason = error instanceof Error ? error.message : 'unknown';
      logEvent('mcp.failed', { request_id: c.var.requestId, reason });
      return `The call failed. Quote the request ID ${c.var.requestId} when you report it.`;
    };
    // Loaded at the first use, so that the start of the Worker does not wait for the schemas of the protocol.
    const [{ createMcpHandler }, { createServer }, { TOOLS }] = await Promise.all([
      import('@modelcontextprotocol/server'),
      import('../../mcp/server.ts'),
      import('../../mcp/tools.ts'),
    ]);
    const handler = createMcpHandler(
      () => createServer({ client, project }, TOOLS, { version: VERSION, onFailure }),
      {
        responseMode: 'json',
        // No tool changes while the Worker runs, so a subscription would only hold a connection open.
        maxSubscriptions: 0,
      },
    );
    return handler.fetch(c.req.raw);
  });
}
