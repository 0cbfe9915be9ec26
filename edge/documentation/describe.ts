import type { OpenAPIHono } from '@hono/zod-openapi';
import { z } from 'zod';
import { describeFailures } from '../api/failure-responses.ts';
import { operation, response } from '../api/operation.ts';
import { describeResponseHeaders, responseHeaders } from '../api/response-headers.ts';
import type { AppEnv } from '../app-env.ts';
import type { Document } from './openapi.ts';
import { documentationPage } from './page.ts';

const INFO = {
  title: 'branchgate',
  version: '1',
  license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
  description: `Managed PostgreSQL databases with copy-on-write branches.

Authentication: send an access token as \`Authorization: Bearer <token>\`. Reading takes the scope \`branchgate:read\` or \`branchgate:write\`, everything else \`branchgate:write\`. Owners and admins reach all projects of their tenant, operators and viewers those they created. What you may not see looks like what does not exist.

Signing in: in a browser, begin at \`/api/v1/auth/idp/login\`; a command line begins with \`/api/v1/auth/cli/start\`. Both end with the identity provider's tokens (PASETO v4.public). With a password or a code by mail, \`/api/v1/auth/login\` and \`/api/v1/auth/magic-link/verify\` answer with tokens (for an account of this gateway, its own JWTs), or with a \`pre_auth_token\`: send that as the bearer token to \`/api/v1/auth/2fa/…\`, which ends with tokens. It is good nowhere else. Keep the refresh token secret; \`/api/v1/auth/refresh\` gives new tokens for it. \`/api/v1/me\` says whose token it is.

Errors: \`{ "error": "CODE", "message": "…", "request_id": "…" }\` and the fields of that error. Unknown fields and unknown query parameters are refused.

Limits: 1000 reads and 200 writes a minute and project. Every answer says how many are left and when the window ends. After a 429 or 503 wait as many seconds as \`Retry-After\` says.

Repeating safely: send an \`Idempotency-Key\` with a request that makes something. The same key within 24 hours gets the first answer again, marked \`Idempotency-Replayed: true\`.

Lists: \`limit\` (50, at most 100) and \`cursor\`; \`next_cursor\` leads to the next page and is null on the last one.`,
};

/** What a bearer can be; operations say which they take. */
const BEARERS = {
  access_token: "The identity provider's PASETO v4.public, or this gateway's JWT for an account of its own.",
  pre_auth_token: 'Of a sign-in whose second step is due: 5 minutes, for a set-up 60.',
  platform_secret: 'Of whoever runs the service.',
};

const tags = ['Description'];

/** The description of all operations of `app`. */
export const descriptionOf = (app: OpenAPIHono<AppEnv>): Document =>
  app.getOpenAPI31Document({ openapi: '3.1.0', info: INFO, servers: [{ url: '/' }] });

/** Adds the API's own description, as data and as a page, to the operations it describes. */
export function describe(app: OpenAPIHono<AppEnv>): void {
  const { openAPIRegistry } = app;
  for (const [name, description] of Object.entries(BEARERS)) {
    openAPIRegistry.registerComponent('securitySchemes', name, {
      type: 'http',
      scheme: 'bearer',
      description,
    });
  }
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
      responses: { 200: response('The document.', z.looseObject({ openapi: z.string() })) },
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
