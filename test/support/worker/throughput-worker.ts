import { DurableObject } from 'cloudflare:workers';
import { Hono } from 'hono';
import { app } from '../../../edge/app.ts';
import type { Env } from '../../../edge/env.ts';

export { Challenges, HostLink, ProjectCoordinator, RateLimiter } from '../../../edge/worker.ts';

/** The gateway beside Workers that do hardly anything, of the same framework and in the same isolate. */

export class Empty extends DurableObject {
  async call(): Promise<null> {
    return null;
  }
}

interface BareEnv extends Env {
  EMPTY: DurableObjectNamespace<Empty>;
}

const ANSWER = { id: 'a', email: 'ada@example.com', role: 'owner' };

const log = (): void =>
  console.log(JSON.stringify({ event: 'request', request_id: crypto.randomUUID(), status: 200 }));
const callObject = ({ EMPTY }: BareEnv) => EMPTY.get(EMPTY.idFromName('one')).call();
const callD1 = ({ DB }: BareEnv) => DB.prepare('select 1').raw();

/** What no gateway that keeps its promises can do without: a count that is exact, a line a request. */
const bare = new Hono<{ Bindings: BareEnv }>()
  .get('/bare', (c) => c.json(ANSWER))
  .get('/bare/object', async (c) => {
    await callObject(c.env);
    return c.json(ANSWER);
  })
  .get('/bare/object-and-log', async (c) => {
    await callObject(c.env);
    log();
    return c.json(ANSWER);
  })
  .get('/bare/object-and-d1', async (c) => {
    await Promise.all([callObject(c.env), callD1(c.env)]);
    return c.json(ANSWER);
  });

export default {
  fetch: (request, env, context) =>
    (new URL(request.url).pathname.startsWith('/bare') ? bare : app).fetch(request, env, context),
} satisfies ExportedHandler<BareEnv>;
