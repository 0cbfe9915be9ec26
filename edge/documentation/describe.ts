import type { OpenAPIHono } from '@hono/zod-openapi';
import { z } from 'zod';
import type { AppEnv } from '../pipeline/context.ts';
import { describeFailures } from '../pipeline/failures.ts';
import { operation, response } from '../pipeline/operation.ts';
import { describeResponseHeaders, responseHeaders } from '../pipeline/response-headers.ts';
import type { Document } from './openapi.ts';
import { documentationPage } from './page.ts';

const INFO = {
  title: 'branchgate',
  version: '1',
  license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
  description: `Managed PostgreSQL databases with copy-on-write branches.

Authentication: send an access token as \`Authorization: Bearer <token>\`. Read operations require the scope \`branchgate:read\` or \`branchgate:write\`; all other operations require \`branchgate:write\`. Owners and admins can access every project of their tenant; operators and viewers can access the projects that they created or that are shared with them. A resource that you are not allowed to see is reported as not found.

Machines: an API key (\`/api/v1/api-keys\`) is a bearer token too. A workload exchanges the ID token of its CI service at \`/api/v1/auth/token\`. A client of the Model Context Protocol that a person signed in has an access token for \`/mcp\` only. Each acts in the name of the user who created the key or the trust, or who signed in the client, at most with the role of that user. Each operation states which machines may use it as \`x-machines\`: \`of_branches\` (all), \`unlimited\` (those without a \`branch_pattern\`), \`of_tenant\` (of these, those for all projects) or \`none\`.

Signing in: a browser starts at \`/api/v1/auth/idp/login\`, a command line tool at \`/api/v1/auth/cli/start\`. Both return tokens of the identity provider (PASETO v4.public). To sign in with a password or an e-mail code, call \`/api/v1/auth/login\` or \`/api/v1/auth/magic-link/verify\`. They return either tokens (the gateway's own JWTs for accounts of this gateway) or a \`pre_auth_token\`. Send a \`pre_auth_token\` as the bearer token to \`/api/v1/auth/2fa/…\` to complete the second factor and get the tokens; no other operation accepts it. Keep the refresh token secret, and exchange it for new tokens at \`/api/v1/auth/refresh\`. \`/api/v1/me\` returns the user that a token belongs to.

Errors: the body is \`{ "error": "CODE", "message": "…", "request_id": "…" }\`, plus fields that depend on the error. Unrecognized fields and query parameters are rejected.

Rate limits: 1000 reads and 200 writes per minute and project. Every response reports the remaining requests and the end of the current window. After a 429 or 503 response, wait the number of seconds in \`Retry-After\`.

Idempotency: send an \`Idempotency-Key\` with a POST that creates something in your tenant, resets or restores a branch, or rotates credentials. Repeating the request with the same key within 24 hours returns the first response again, marked \`Idempotency-Replayed: true\`. Secrets are not stored with the key: a repeated rotation or creation of a webhook reads them again, and a repeated creation of an API key returns null in their place. Row changes, queries and rehearsals accept no key: repeating one makes no new thing but a new change.

Pagination: lists accept \`limit\` (default 50, maximum 100) and \`cursor\`. Pass \`next_cursor\` as \`cursor\` to get the next page; it is null on the last page.`,
};

/** The bearer tokens; each operation states which one it requires. */
const BEARERS = {
  access_token:
    'An access token of the identity provider (PASETO v4.public), a JWT of this gateway for one of its own accounts or for a workload, or an API key.',
  pre_auth_token:
    'Returned by a sign-in that requires a second factor. Valid for 5 minutes, or for 60 minutes when the second factor must be set up first.',
  scim_token: 'The SCIM token of an identity provider.',
  platform_secret: 'The secret of the platform operator.',
};

/** The chapters of the reference. */
const TAGS = {
  Health: 'Liveness and readiness checks for load balancers and monitoring.',
  Projects: 'A project holds one main database and its branches, on one database host.',
  Branches: 'A branch is a copy-on-write clone of another branch, with its own database and logins.',
  Snapshots:
    'A snapshot is a closed, immutable copy of a branch, from which branches can be created or reset.',
  Differences: 'Comparing the rows and the schema of a branch with another branch or a snapshot.',
  Rehearsals: 'A rehearsal reports what a migration locks, rewrites and loses on a branch.',
  Changes:
    'A change of the schema of `main`: planned, rehearsed, approved, applied without an outage, and undone.',
  Imports: 'Copying a PostgreSQL database elsewhere into an empty `main`.',
  Following: 'Taking over the data of a PostgreSQL database elsewhere.',
  'Tables and rows': 'Reading and editing the rows of a branch without a database connection.',
  Masking: 'How the values of columns are replaced where data of `main` is not to be shown.',
  'Network rules': 'The networks that may connect to the databases of a project.',
  Metrics: 'Current values, history and live measurements of branches and projects.',
  Jobs: 'The progress and outcome of long-running operations.',
  Events: 'Changes in a project as a stream.',
  Webhooks: 'Addresses of a tenant to which events are sent.',
  'Machine access': 'API keys, and trusts that let workloads sign in without a stored secret.',
  'Sign-in of agents':
    'OAuth 2.1 for clients of the Model Context Protocol, whom people let act in their name.',
  Audit: 'A record of who did what in a tenant, and from where.',
  Members: 'The people in a tenant, and whom its projects are shared with.',
  'Sign-in':
    'Sign-up, sign-in with a provider, a password or an e-mail code, passwords, second factors and sessions.',
  'Company sign-in': 'The identity providers of a tenant, its domains, and who has to use them.',
  SCIM: 'People and groups of an identity provider (RFC 7643, RFC 7644), authenticated by its SCIM token.',
  Platform: 'Operations for the operator of the platform, authenticated by the platform secret.',
  Agents: 'Operations used by the agent on a database host.',
  Description: 'The description of this API.',
};

const tags = ['Description'];

/** The OpenAPI document of all operations of `app`. */
export const descriptionOf = (app: OpenAPIHono<AppEnv>): Document =>
  app.getOpenAPI31Document({
    openapi: '3.1.0',
    info: INFO,
    servers: [{ url: '/' }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
  });

/** Adds the operations that serve the API's own description, as a document and as a page. */
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
      summary: 'Get this description as an OpenAPI 3.1 document',
      tags,
      responses: { 200: response('The OpenAPI document.', z.looseObject({ openapi: z.string() })) },
    }),
    (c) => c.json(description() as { openapi: string }, 200),
  );

  app.openapi(
    operation({
      access: 'public',
      operationId: 'readDescription',
      method: 'get',
      path: '/docs',
      summary: 'Get this description as an HTML page',
      tags,
      responses: {
        200: {
          description: 'A self-contained page without scripts.',
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

  // Runs last, because it collects the failures that the operations refer to.
  describeFailures(app);
}
