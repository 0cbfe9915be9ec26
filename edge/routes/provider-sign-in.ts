import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import { z } from 'zod';
import { ApiError } from '../errors.ts';
import type { AppContext } from '../pipeline/context.ts';
import { emptyResponse, operation, operations, response } from '../pipeline/operation.ts';
import { ResponseForm } from '../sign-in/first-factor.ts';
import {
  CALLBACK_PATH,
  ReturnTo,
  returnFromProvider,
  startAtProvider,
  stateCookie,
} from '../sign-in/provider-sign-in.ts';
import { TOKEN_FIELDS, tokenFields } from '../sign-in/sessions.ts';
import type { Tokens } from '../sign-in/sign-in-context.ts';
import { storePageSession } from './page-session.ts';
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

/** Ends on the page that the sign-in was started for, with a session or with the code of what failed. */
async function returnToPage(c: AppContext, returnTo: string, complete: () => Promise<Tokens>) {
  // An absolute address, because a browser could read the path of a relative one as a host.
  const page = new URL(returnTo, signInContextOf(c).settings.BASE_URL);
  try {
    await storePageSession(c, await complete());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const { code } = error.failure;
    c.set('failed', { code, reason: error.message });
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
    failures: ['IDP_UNAVAILABLE'],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const { return_to: returnTo, response: form } = c.req.valid('query');
    const { location, state, cookie } = await startAtProvider(context, { returnTo, response: form });
    const { name, attributes } = stateCookie(context.settings, state);
    setCookie(c, name, cookie, attributes);
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
    failures: ['SIGN_IN_FAILED', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const { name, attributes } = stateCookie(context.settings, c.req.valid('query').state ?? '');
    const parameters = new URL(c.req.url).searchParams;
    const started = await returnFromProvider(context, parameters, getCookie(c, name));
    const { returnTo, complete } = started;
    if (started.response === 'page') {
      deleteCookie(c, name, attributes);
      return returnToPage(c, returnTo, complete);
    }
    const tokens = await complete();
    deleteCookie(c, name, attributes);
    return c.json({ ...tokenFields(tokens), state: returnTo }, 200);
  },
);

export const providerSignInRoutes = router;
