import { isNotNull } from 'drizzle-orm';
import { Hono } from 'hono';
import { type AppEnv, databaseOf } from '../app-env.ts';
import { hosts } from '../database/schema.ts';
import { isLinked } from '../host-link/host-caller.ts';

/** Whether requests can be served: D1 answers and the agent of at least one host is linked. */
export const healthRoutes = new Hono<AppEnv>().get('/readyz', async (c) => {
  const enrolled = await databaseOf(c)
    .select({ id: hosts.id })
    .from(hosts)
    .where(isNotNull(hosts.enrolledAt));
  const linked = await Promise.all(enrolled.map(({ id }) => isLinked(c.env, id)));
  const ready = linked.includes(true);
  return c.json({ status: ready ? 'ready' : 'no host linked' }, ready ? 200 : 503);
});
