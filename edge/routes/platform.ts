import { Hono, type MiddlewareHandler } from 'hono';
import { openDatabase } from '../database/database.ts';
import { ApiError } from '../errors.ts';
import { NewHost, registerHost } from '../host-link/enrolment.ts';
import { readBody } from '../requests.ts';
import { type Env, readSettings } from '../settings.ts';

/** Digests have one length, and comparing them in constant time tells nothing of how much of a guess was right. */
const requirePlatformSecret: MiddlewareHandler<{ Bindings: Env }> = async (context, next) => {
  const expected = `Bearer ${readSettings(context.env).PLATFORM_SECRET}`;
  const [given, wanted] = await Promise.all(
    [context.req.header('authorization') ?? '', expected].map((text) =>
      crypto.subtle.digest('SHA-256', new TextEncoder().encode(text)),
    ),
  );
  if (!given || !wanted || !crypto.subtle.timingSafeEqual(given, wanted))
    throw new ApiError('UNAUTHENTICATED');
  await next();
};

/** Routes for whoever runs the platform, not for tenants. */
export const platformRoutes = new Hono<{ Bindings: Env }>()
  .use('/platform/v1/*', requirePlatformSecret)
  .post('/platform/v1/hosts', async (context) => {
    const host = await readBody(context, NewHost);
    return context.json(await registerHost(openDatabase(context.env.DB), host, new Date()), 201);
  });
