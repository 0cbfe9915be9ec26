import type { MessagePort } from 'node:worker_threads';
import { extract } from '@supabase/pg-delta/extract';
import type { CatalogQuery, FromThread, SideName, Task, ToThread } from './comparison-thread.ts';
import { sourceChanges } from './copied-schema.ts';

type ExtractionPool = Parameters<typeof extract>[0];

/** The library opens and ends a transaction, which is here the one that is open already. */
const TRANSACTION = /^(?:BEGIN|COMMIT|ROLLBACK)\b/;
/** Its queries about the roles of the whole host, which are those of all tenants. */
const MEMBERSHIPS = /FROM pg_auth_members m\b/;
const ROLES = /FROM pg_roles r\s+WHERE\b/;

/** The roles that own something in the database, or that something is granted to. */
const rolesOfDatabase = (roles: string) => `
  SELECT * FROM (${roles}) AS role WHERE rolsuper OR name IN (
    SELECT rolname FROM pg_shdepend JOIN pg_roles ON pg_roles.oid = refobjid
    WHERE refclassid = 'pg_authid'::regclass
      AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database()))`;

function poolOf(query: CatalogQuery): ExtractionPool {
  const client = {
    query: (text: string, values?: unknown[]) => {
      if (TRANSACTION.test(text) || MEMBERSHIPS.test(text)) return Promise.resolve({ rows: [] });
      return query(ROLES.test(text) ? rolesOfDatabase(text) : text, values);
    },
    release: () => {},
  };
  return { connect: async () => client } as unknown as ExtractionPool;
}

/** @param query of a transaction that is read-only and has one snapshot */
const readSchema = async (query: CatalogQuery) => (await extract(poolOf(query))).factBase;

/**
 * Compares two schemas in this thread, which has no session of its own: it sends its queries to the agent.
 */
export async function serveComparison(port: MessagePort, { before }: Task): Promise<void> {
  const waiting = new Map<number, (rows: ToThread['rows']) => void>();
  port.on('message', ({ query, rows }: ToThread) => {
    waiting.get(query)?.(rows);
    waiting.delete(query);
  });
  const send = (message: FromThread) => port.postMessage(message);
  let queries = 0;
  const ask =
    (side: SideName): CatalogQuery =>
    (text, values) =>
      new Promise((resolve) => {
        queries += 1;
        waiting.set(queries, (rows) => resolve({ rows }));
        send({ query: queries, side, text, values });
      });

  const source = await readSchema(ask('after'));
  const copy = await readSchema(ask('before'));
  send({ outcome: { followed: sourceChanges(copy, source, before.followed, before.sameRoles) } });
  port.close();
}
