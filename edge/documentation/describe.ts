import type { OpenAPIHono } from '@hono/zod-openapi';
import { z } from 'zod';
import { describeFailures } from '../api/failure-responses.ts';
import { answer, operation } from '../api/operation.ts';
import { describeResponseHeaders, responseHeaders } from '../api/response-headers.ts';
import type { AppEnv } from '../app-env.ts';
import type { Document } from './openapi.ts';
import { documentationPage } from './page.ts';

const INFO = {
  title: 'branchgate',
  version: '1',
  license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
  description: `Managed PostgreSQL databases with copy-on-write branches.

Authentication: send a PASETO v4.public access token of the identity provider as \`Authorization: Bearer <token>\`. Reading takes the scope \`branchgate:read\` or \`branchgate:write\`, everything else \`branchgate:write\`. Owners and admins reach all projects of their tenant, operators and viewers those they created. What you may not see looks like what does not exist.

Errors: \`{ "error": "CODE", "message": "…", "request_id": "…" }\` and the fields of that error. Unknown fields and unknown query parameters are refused.

Limits: 1000 reads and 200 writes a minute and project. Every answer says how many are left and when the window ends. After a 429 or 503 wait as many seconds as \`Retry-After\` says.

Repeating safely: send an \`Idempotency-Key\` with a request that makes something. The same key within 24 hours gets the first answer again, marked \`Idempotency-Replayed: true\`.

Lists: \`limit\` (50, at most 100) and \`cursor\`; \`next_cursor\` leads to the next page and is null on the last one.`,
};

const tags = ['Description'];

/** The description of all operations of `app`. */
export const descriptionOf = (app: OpenAPIHono<AppEnv>): Document =>
  app.getOpenAPI31Document({ openapi: '3.1.0', info: INFO, servers: [{ url: '/' }] });

/** Adds the API's own description, as data and as a page, to the operations it describes. */
export function describe(app: OpenAPIHono<AppEnv>): void {
  const { openAPIRegistry } = app;
  openAPIRegistry.registerComponent('securitySchemes', 'access_token', {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'PASETO v4.public',
  });
  openAPIRegistry.registerComponent('securitySchemes', 'pre_auth_token', { type: 'http', scheme: 'bearer' });
  openAPIRegistry.registerComponent('securitySchemes', 'platform_secret', { type: 'http', scheme: 'bearer' });
  describeResponseHeaders(app);

  let described: Document | undefined;
  const description = () => {
    described ??= descriptionOf(app);
    return described;
  };
  let page: ReturnType<typeof documentationPage> | undefined;

  app.openapi(
    operation({
      access: 'public',
      operationId: 'getDescription',
      method: 'get',
      path: '/api/v1/openapi.json',
      summary: 'This description, as OpenAPI 3.1',
      tags,
      responses: { 200: answer('The document.', z.looseObject({ openapi: z.string() })) },
    }),
    (c) => c.json(description() as { openapi: string }, 200),
  );

  app.openapi(
    operation({
      access: 'public',
      operationId: 'readDescription',
      method: 'get',
      path: '/docs',
      summary: 'This description, as a page',
      tags,
      responses: {
        200: {
          description: 'A page that loads nothing else.',
          headers: responseHeaders(),
          content: { 'text/html': { schema: z.string() } },
        },
      },
    }),
    async (c) => {
      page ??= documentationPage(description());
      const { html, contentSecurityPolicy } = await page;
      c.header('Content-Security-Policy', contentSecurityPolicy);
      return c.html(html);
    },
  );

  // Last, because it looks what the operations refer to.
  describeFailures(app);
}
