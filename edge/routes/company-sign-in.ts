import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import { z } from 'zod';
import { FAILURES } from '../../shared/failures.ts';
import { unwrap } from '../errors.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { returnFrom, startSignIn } from '../sign-in/browser-sign-in.ts';
import {
  cliRedirect,
  cliRequestOf,
  companyProvider,
  METHODS,
  methodsFor,
} from '../sign-in/company-sign-in.ts';
import { LoginResponse, ResponseForm, ResponseQuery } from '../sign-in/first-factor.ts';
import { ReturnTo } from '../sign-in/provider-sign-in.ts';
import { RECOVERY_CODE } from '../sign-in/second-factor.ts';
import { TOKEN_FIELDS, tokenFields } from '../sign-in/sessions.ts';
import { recoverOwner } from '../sign-in/sign-in-policy.ts';
import { stateCookie } from '../sign-in/state-cookie.ts';
import { ProviderParams } from './in-project.ts';
import { deliverLogin, storePageSession } from './sessions.ts';
import { signInContextOf } from './sign-in-context.ts';

const tags = ['Sign-in'];

const Methods = z
  .strictObject({
    methods: z.array(z.enum(METHODS)).meta({
      description:
        'Ways to sign in: with a password, a mailed code, the identity provider of the gateway (`auth/idp/login`), or that of a company (`sso`).',
      example: ['password', 'code', 'sso'],
    }),
    sso: z
      .strictObject({
        name: z.string().meta({ example: 'Acme' }),
        start_url: z.url().meta({ description: 'The address to open in a browser.' }),
      })
      .nullable(),
    sign_up: z.boolean().meta({ description: 'Whether everyone can sign up at this gateway.' }),
  })
  .meta({ id: 'SignInMethods' });

const StartQuery = z.strictObject({
  return_to: ReturnTo.default('/'),
  response: ResponseForm,
  login_hint: z.email().max(254).optional().meta({
    description: 'The address of the person, for the page of the provider.',
    example: 'ada@example.com',
  }),
  cli: z
    .string()
    .max(4096)
    .optional()
    .meta({ description: 'The sign-in of a command line: see `auth/cli/start`.' }),
});

const Text = z.string().max(4096).optional();
/** What providers return. Others add parameters of their own, which are ignored. */
const CallbackQuery = z.object({ code: Text, state: Text, iss: Text, error: Text, error_description: Text });

const SsoSignIn = z
  .strictObject({
    ...TOKEN_FIELDS,
    state: z.string().meta({ description: 'The `return_to` of the start.', example: '/projects' }),
  })
  .meta({ id: 'CompanySignIn' });

const FAILURES_OF_SSO = ['NOT_FOUND', 'SIGN_IN_FAILED', 'SSO_MISCONFIGURED', 'IDP_UNAVAILABLE'] as const;

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'listSignInMethods',
    method: 'post',
    path: '/api/v1/auth/methods',
    summary: 'List the ways to sign in with an address',
    description:
      'Depends on the domain of the address only, so it says nothing about accounts. Without an address, the ways that the gateway has for everyone.',
    tags,
    request: {
      body: jsonBody(
        z.strictObject({ email: EmailAddress.optional() }).meta({ example: { email: 'ada@example.com' } }),
      ),
    },
    responses: { 200: response('The ways to sign in.', Methods) },
  }),
  async (c) => {
    const context = signInContextOf(c);
    const found = await methodsFor(context, c.req.valid('json').email);
    return c.json({ ...found, sign_up: context.settings.SIGN_UP === 'open' }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'startCompanySignIn',
    method: 'get',
    path: '/api/v1/auth/sso/{provider_id}/start',
    summary: 'Start a sign-in at the identity provider of a company',
    description:
      'Redirects the browser to the provider and sets a cookie, which is valid for 10 minutes and one sign-in. With `response=page` the callback sets the cookie of a session and redirects to `return_to`; a failure is appended to it as `sign_in_error`.',
    tags,
    request: { params: ProviderParams, query: StartQuery },
    responses: { 302: emptyResponse('`Location` is the page of the provider.') },
    failures: FAILURES_OF_SSO,
  }),
  async (c) => {
    const context = signInContextOf(c);
    const { provider_id: providerId } = c.req.valid('param');
    const { return_to: returnTo, response: form, login_hint: hint, cli } = c.req.valid('query');
    const provider = unwrap(await companyProvider(context, providerId));
    const end = { returnTo, response: form, hint, cli: unwrap(await cliRequestOf(context, cli)) };
    const { location, cookie, value } = unwrap(await startSignIn(context, provider, end));
    setCookie(c, cookie.name, value, cookie.attributes);
    return c.redirect(location, 302);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'completeCompanySignIn',
    method: 'get',
    path: '/api/v1/auth/sso/{provider_id}/callback',
    summary: 'Complete a sign-in at the identity provider of a company',
    description:
      'The provider redirects the browser to this path. It requires the cookie of the started sign-in; the state and the code are valid once.',
    tags,
    request: { params: ProviderParams, query: CallbackQuery },
    responses: {
      200: response('The tokens of the gateway.', SsoSignIn),
      302: emptyResponse('`Location` is the page or the command line that the sign-in was started for.'),
    },
    failures: [...FAILURES_OF_SSO, 'SSO_ADDRESS_REFUSED', 'SSO_DISABLED'],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const { provider_id: providerId } = c.req.valid('param');
    const { settings } = context;
    const provider = unwrap(await companyProvider(context, providerId));
    const { name, attributes } = stateCookie(settings, provider, c.req.valid('query').state ?? '');
    const parameters = new URL(c.req.url).searchParams;
    const started = unwrap(await returnFrom(context, provider, parameters, getCookie(c, name)));
    const completed = await started.complete();
    if (!completed.ok && (started.cli || started.response === 'page')) {
      const { code, reason = FAILURES[code].message } = completed.failure;
      c.set('failed', { code, reason });
    }
    if (started.cli) {
      deleteCookie(c, name, attributes);
      return c.redirect(await cliRedirect(context, started.cli, completed), 302);
    }
    if (started.response === 'page') {
      deleteCookie(c, name, attributes);
      const page = new URL(started.returnTo, settings.BASE_URL);
      if (completed.ok) await storePageSession(c, completed.value.tokens);
      else page.searchParams.set('sign_in_error', completed.failure.code);
      return c.redirect(page.href, 302);
    }
    const { tokens } = unwrap(completed);
    deleteCookie(c, name, attributes);
    return c.json({ ...tokenFields(tokens), state: started.returnTo }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'recoverOwner',
    method: 'post',
    path: '/api/v1/auth/sso/recover',
    summary: 'Sign in as an owner with the recovery code of the tenant',
    description:
      'For the day on which the identity provider is away. The code is valid once, and every use is mailed to all owners. Attempts have the limits of a password.',
    tags,
    request: {
      query: ResponseQuery,
      body: jsonBody(
        z
          .strictObject({
            email: EmailAddress,
            code: z.string().max(64).regex(RECOVERY_CODE, 'Expected 16 letters and digits'),
          })
          .meta({ example: { email: 'ada@example.com', code: 'k3ud-7xqa-m2pz-w5tc' } }),
      ),
    },
    responses: { 200: response('Tokens.', LoginResponse) },
    failures: ['CODE_WRONG', 'CROSS_ORIGIN_REQUEST'],
  }),
  async (c) => {
    const { email, code } = c.req.valid('json');
    const recover = () => recoverOwner(signInContextOf(c), email, code);
    return c.json(await deliverLogin(c, c.req.valid('query').response, recover), 200);
  },
);

export const companySignInRoutes = router;
