import type { MessagePort } from 'node:worker_threads';
import { deserializeSnapshot, serializeSnapshot } from '@supabase/pg-delta/core';
import { type ExtractResult, extract } from '@supabase/pg-delta/extract';
import { type Plan, plan } from '@supabase/pg-delta/plan';
import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import { changesOf } from './changes.ts';
import type { CatalogQuery, FromThread, Outcome, SideName, Task, ToThread } from './comparison-thread.ts';
import { sourceChanges } from './copied-schema.ts';
import { compareOtherKinds, OTHER_KINDS, type OtherObject, readOtherKinds } from './other-kinds.ts';
import { ownStatements } from './refused-changes.ts';

/** A schema as it was in one snapshot. */
interface ReadSchema {
  facts: ExtractResult['factBase'];
  version: string;
  others: readonly OtherObject[];
  /** What could not be read. */
  unread: readonly string[];
}

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
export async function readSchema(query: CatalogQuery): Promise<ReadSchema> {
  const { factBase, pgVersion, diagnostics } = await extract(poolOf(query));
  const others = await readOtherKinds(query);
  return { facts: factBase, version: pgVersion, others, unread: unreadOf(diagnostics) };
}

function storeSchema({ facts, version, others, unread }: ReadSchema): string {
  return JSON.stringify({ facts: serializeSnapshot(facts, { pgVersion: version }), others, unread });
}

function restoreSchema(text: string): ReadSchema {
  const { facts, others, unread } = JSON.parse(text) as Omit<ReadSchema, 'facts'> & { facts: string };
  const { factBase, pgVersion } = deserializeSnapshot(facts);
  return { facts: factBase, version: pgVersion, others, unread };
}

/** What leads from the schema `before` to the schema `after`. */
export function planSchemas(before: ReadSchema, after: ReadSchema): SchemaDifference {
  const own = ownStatements(before.facts, after.facts);
  const { deltas, actions, preamble } = planBetween(own.before, after.facts);
  const others = compareOtherKinds(before.others, after.others);
  const settings = actions.length === 0 ? [] : preamble.map(({ name, value }) => `SET ${name} = ${value}`);
  const statements = [
    ...own.first,
    ...others.first,
    ...actions.map(({ sql }) => sql),
    ...others.last,
    ...own.last,
  ];
  return {
    changes: [...changesOf([...own.changes, ...deltas]), ...others.changes],
    statements: [...settings, ...statements],
    not_modelled: [...new Set([...others.notModelled, ...after.unread, ...before.unread])],
  };
}

/** Roles belong to the host, and both sides have the same ones, so they are only referred to. */
function planBetween(before: ReadSchema['facts'], after: ReadSchema['facts']): Plan {
  const roles = [...before.facts(), ...after.facts()].flatMap(({ id }) =>
    id.kind === 'role' ? [id.name] : [],
  );
  return plan(before, after, { scope: 'database', assumedRoles: [...new Set(roles)] });
}

/** Diagnostics about the library's own graph, which say nothing about what was compared. */
const INTERNAL = new Set(['dangling_edge', 'unresolved_dependency', 'orphaned_satellite']);

/** What could not be compared, except for the kinds of our own table. */
const unreadOf = (diagnostics: ExtractResult['diagnostics']): string[] =>
  diagnostics
    .filter(({ code, severity }) => severity !== 'info' && !INTERNAL.has(code))
    .filter(({ code, context }) => code !== 'unmodeled_kind' || !(String(context?.kind) in OTHER_KINDS))
    .map(({ message }) => message);

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

  async function outcome(): Promise<Outcome> {
    const after = await readSchema(ask('after'));
    if (before === null) return { difference: null, stored: storeSchema(after) };
    if (typeof before === 'object' && 'followed' in before) {
      const copy = await readSchema(ask('before'));
      return {
        difference: null,
        stored: null,
        followed: sourceChanges(copy.facts, after.facts, before.followed, before.sameRoles),
      };
    }
    const other = before === 'session' ? await readSchema(ask('before')) : restoreSchema(before.stored);
    return { difference: planSchemas(other, after), stored: null };
  }

  send({ outcome: await outcome() });
  port.close();
}
