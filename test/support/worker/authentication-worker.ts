import { type AuthenticationSettings, authenticate } from '../../../edge/authentication/authenticate.ts';

let settings: AuthenticationSettings | undefined;

/** Authentication in workerd: returns the identity of the bearer, or the failure. */
export default {
  async fetch(request, env, context) {
    settings ??= {
      SERVICE_NAME: 'branchgate',
      BASE_URL: 'https://api.example.com',
      JWT_KEYS: [],
      IDP_URL: env.IDP_URL,
      BASE_IDP_KEY_ENDPOINT: `${env.IDP_URL}/keys`,
    };
    const call = { now: new Date(), waitUntil: (work: Promise<unknown>) => context.waitUntil(work) };
    const bearer = await authenticate(request.headers.get('authorization'), { settings, ...call });
    return bearer.ok ? Response.json(bearer.value) : Response.json(bearer.failure, { status: 400 });
  },
} satisfies ExportedHandler<{ IDP_URL: string }>;
