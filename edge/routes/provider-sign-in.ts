import { z } from 'zod';
import { emptyResponse, operation, operations, response } from '../api/operation.ts';
import { completeAtProvider, startAtProvider } from '../sign-in/provider/provider-sign-in.ts';
import { ReturnTo } from '../sign-in/provider/return-to.ts';
import { CALLBACK_PATH } from '../sign-in/provider/sign-in-state.ts';
import { TOKEN_FIELDS, tokenFields } from '../sign-in/sessions/token-response.ts';

const tags = ['Sign-in'];

const StartQuery = z.strictObject({ return_to: ReturnTo.default('/') });

const Text = z.string().max(2048).optional();

/** What providers send back; all but the first four is passed over. */
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
      .meta({ description: 'The `return_to` that the sign-in began with.', example: '/projects' }),
  })
  .meta({ id: 'ProviderSignIn' });

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'startProviderSignIn',
    method: 'get',
    path: '/api/v1/auth/idp/login',
    summary: 'Sign in at the identity provider, in a browser',
    description:
      'Sends the browser to the provider, with a cookie that holds for 10 minutes and one sign-in. It comes back to the callback.',
    tags,
    request: { query: StartQuery },
    responses: { 302: emptyResponse('`Location` is the authorization endpoint of the provider.') },
    failures: ['IDP_UNAVAILABLE'],
  }),
  async (c) => {
    const location = await startAtProvider(c, c.req.valid('query').return_to);
    c.header('Cache-Control', 'no-store');
    return c.redirect(location, 302);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'completeProviderSignIn',
    method: 'get',
    path: CALLBACK_PATH,
    summary: 'Where the provider sends the browser back to',
    description: 'Takes the cookie of the sign-in that began; the state and the code are good once.',
    tags,
    request: { query: CallbackQuery },
    responses: { 200: response('The tokens of the provider.', ProviderSignIn) },
    failures: ['SIGN_IN_FAILED', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    c.header('Cache-Control', 'no-store');
    const { tokens, returnTo } = await completeAtProvider(c, new URL(c.req.url).searchParams);
    return c.json({ ...tokenFields(tokens), state: returnTo }, 200);
  },
);

export const providerSignInRoutes = router;
