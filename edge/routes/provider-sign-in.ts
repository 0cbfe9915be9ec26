import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import { z } from 'zod';
import { FAILURES, type Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import { unwrap } from '../errors.ts';
import type { AppContext } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { returnFrom, startSignIn } from '../sign-in/browser-sign-in.ts';
import { companyCliUrl, exchangeCompanyCode, isCompanyCode } from '../sign-in/company-sign-in.ts';
import { ResponseForm, SignedInUser } from '../sign-in/first-factor.ts';
import { authorizationUrl, scopesOf } from '../sign-in/provider-client.ts';
import { CALLBACK_PATH, exchangeCliCode, gatewayProvider, ReturnTo } from '../sign-in/provider-sign-in.ts';
import { TOKEN_FIELDS, tokenFields } from '../sign-in/sessions.ts';
import type { Tokens } from '../sign-in/sign-in-context.ts';
import { stateCookie } from '../sign-in/state-cookie.ts';
import { storePageSession } from './sessions.ts';
import { signInContextOf } from './sign-in-context.ts';

const tags = ['Sign-in'];

const StartQuery = z.strictObject({ return_to: ReturnTo.default('/'), response: ResponseForm });

const Text = z.string().max(2048).optional();

/** The parameters that providers return. Only the first four are used. */
const CallbackQuery = z.strictObject({
  code: Text,
  state: Text,
  iss: Text,
  error: Text,
  error_description: Text,
  error_uri: Text,
  session_state: Text,
  scope: Text,
});

const ProviderSignIn = z
  .strictObject({
    ...TOKEN_FIELDS,
    state: z
      .string()
      .meta({ description: 'The `return_to` that the sign-in was started with.', example: '/projects' }),
  })
  .meta({ id: 'ProviderSignIn' });

interface CliSession {
  tokens: Tokens & { refreshExpiresAt: Date | null };
  principal: Principal;
}

/** Ends on the page that the sign-in was started for, with a session or with the code of what failed. */
async function returnToPage(c: AppContext, returnTo: string, completed: Result<Tokens, Failure>) {
  // An absolute address, because a browser could read the path of a relative one as a host.
  const page = new URL(returnTo, signInContextOf(c).settings.BASE_URL);
  if (completed.ok) {
    await storePageSession(c, completed.value);
  } else {
    const { code, reason = FAILURES[code].message } = completed.failure;
    c.set('failed', { code, reason });
    page.searchParams.set('sign_in_error', code);
  }
  return c.redirect(page.href, 302);
}

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'startProviderSignIn',
    method: 'get',
    path: '/api/v1/auth/idp/login',
    summary: 'Start a sign-in at the identity provider',
    description:
      'Redirects the browser to the provider and sets a cookie, which is valid for 10 minutes and one sign-in. The provider redirects back to the callback. With `response=page` the callback sets the cookie of a session and redirects to `return_to`, or appends the code of a failure to it as `sign_in_error`.',
    tags,
    request: { query: StartQuery },
    responses: { 302: emptyResponse('`Location` is the authorization endpoint of the provider.') },
    failures: ['NO_IDENTITY_PROVIDER', 'IDP_UNAVAILABLE'],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const { return_to: returnTo, response: form } = c.req.valid('query');
    const end = { returnTo, response: form, cli: null };
    const { location, cookie, value } = unwrap(await startSignIn(context, gatewayProvider(context), end));
    setCookie(c, cookie.name, value, cookie.attributes);
    return c.redirect(location, 302);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'completeProviderSignIn',
    method: 'get',
    path: CALLBACK_PATH,
    summary: 'Complete a sign-in at the identity provider',
    description:
      'The provider redirects the browser to this path. It requires the cookie of the started sign-in; the state and the code are valid once.',
    tags,
    request: { query: CallbackQuery },
    responses: {
      200: response('The tokens of the provider.', ProviderSignIn),
      302: emptyResponse('`Location` is the page that the sign-in was started for.'),
    },
    failures: [
      'SSO_REQUIRED',
      'SIGN_IN_FAILED',
      'NO_IDENTITY_PROVIDER',
      'IDP_UNAVAILABLE',
      'KEYS_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const provider = gatewayProvider(context);
    const { name, attributes } = stateCookie(context.settings, provider, c.req.valid('query').state ?? '');
    const parameters = new URL(c.req.url).searchParams;
    const started = unwrap(await returnFrom(context, provider, parameters, getCookie(c, name)));
    const { returnTo, complete } = started;
    if (started.response === 'page') {
      deleteCookie(c, name, attributes);
      return returnToPage(c, returnTo, await complete());
    }
    const tokens = unwrap(await complete());
    deleteCookie(c, name, attributes);
    return c.json({ ...tokenFields(tokens), state: returnTo }, 200);
  },
);

const LOOPBACK = /^http:\/\/(?:localhost|127\.0\.0\.1)(?::([1-9]\d{0,4}))?\/auth\/callback$/;
const PORT_MAX = 65_535;

/**
 * The code is sent to this address, so only this spelling is accepted and nothing is left to a URL parser.
 */
export const LoopbackRedirect = z
  .string()
  .regex(LOOPBACK)
  .refine(
    (address) => Number(LOOPBACK.exec(address)?.[1] ?? 80) <= PORT_MAX,
    'The port must not exceed 65535',
  )
  .meta({
    description: 'The address where the command line listens (RFC 8252 section 7.3): any port, this path.',
    example: 'http://127.0.0.1:49152/auth/callback',
  });

const redirect_uri = LoopbackRedirect;

const CliStart = z
  .strictObject({
    redirect_uri,
    state: z.string().min(1).max(512),
    code_challenge: z
      .string()
      .regex(/^[\w-]{43}$/)
      .meta({ description: 'SHA-256 of the verifier in base64url (RFC 7636 section 4.2).' }),
    code_challenge_method: z.enum(['S256']),
    email: EmailAddress.optional().meta({
      description: 'The address of the person, which finds the identity provider of a company.',
    }),
  })
  .meta({
    id: 'CliStart',
    example: {
      redirect_uri: 'http://127.0.0.1:49152/auth/callback',
      state: 'af0ifjsldkj',
      code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
      code_challenge_method: 'S256',
    },
  });

const CliExchange = z
  .strictObject({
    code: z.string().min(1).max(4096),
    redirect_uri,
    code_verifier: z
      .string()
      .regex(/^[\w.~-]{43,128}$/)
      .meta({ description: 'RFC 7636 section 4.1.' }),
  })
  .meta({
    id: 'CliExchange',
    example: {
      code: 'SplxlOBeZQQYbYS6WxSbIA',
      redirect_uri: 'http://127.0.0.1:49152/auth/callback',
      code_verifier: 'dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk',
    },
  });

const client_id = z.string().meta({ example: 'branchgate-cli' });

const CliSignIn = z
  .strictObject({
    authorization_url: z.url().meta({ description: 'The address to open in a browser.' }),
    client_id,
    scopes: z.string().meta({ example: 'openid profile email branchgate:read branchgate:write' }),
  })
  .meta({ id: 'CliSignIn' });

const CliTokens = z
  .strictObject({
    ...TOKEN_FIELDS,
    expires_at: z.iso.datetime(),
    refresh_token_expires_at: z.iso
      .datetime()
      .nullable()
      .meta({ description: 'Null when the provider does not report it.' }),
    client_id,
    user: SignedInUser,
  })
  .meta({ id: 'CliTokens' });

router.openapi(
  operation({
    access: 'public',
    operationId: 'startCliSignIn',
    method: 'post',
    path: '/api/v1/auth/cli/start',
    summary: 'Start a sign-in from a command line',
    description:
      'With `email`, the address leads to the identity provider of the company of this address, if there is one. At a gateway without an identity provider of its own, it leads to the sign-in page, which asks for the e-mail address.',
    tags,
    request: { body: jsonBody(CliStart) },
    responses: {
      200: response('The address to open, and the client and scopes that it requests.', CliSignIn),
    },
    failures: ['NO_IDENTITY_PROVIDER', 'IDP_UNAVAILABLE'],
  }),
  async (c) => {
    const { code_challenge_method: _, email, ...parameters } = c.req.valid('json');
    const context = signInContextOf(c);
    const { settings } = context;
    const authorization_url =
      (await companyCliUrl(context, parameters, email)) ??
      unwrap(await authorizationUrl(settings, 'cli', parameters));
    const scopes = scopesOf(settings);
    return c.json({ authorization_url, client_id: settings.IDP_CLI_CLIENT_ID, scopes }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'exchangeCliCode',
    method: 'post',
    path: '/api/v1/auth/cli/exchange',
    summary: 'Exchange the code of a command line for tokens',
    description:
      'A code is valid once, even if it is submitted with a wrong verifier. Each sign-in is audited.',
    tags,
    request: { body: jsonBody(CliExchange) },
    responses: { 200: response('The tokens of the provider.', CliTokens) },
    failures: [
      'SIGN_IN_FAILED',
      'TENANT_REQUIRED',
      'NO_IDENTITY_PROVIDER',
      'IDP_UNAVAILABLE',
      'KEYS_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const submitted = c.req.valid('json');
    const exchange = isCompanyCode(submitted.code) ? exchangeCompanyCode : exchangeCliCode;
    const { tokens, principal } = unwrap<CliSession>(await exchange(context, submitted));
    const { userId: id, email, role } = principal;
    const body = {
      ...tokenFields(tokens),
      expires_at: tokens.accessExpiresAt.toISOString(),
      refresh_token_expires_at: tokens.refreshExpiresAt?.toISOString() ?? null,
      client_id: context.settings.IDP_CLI_CLIENT_ID,
      user: { id, email, role },
    };
    return c.json(body, 200);
  },
);

export const providerSignInRoutes = router;
