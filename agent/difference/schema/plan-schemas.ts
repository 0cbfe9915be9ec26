import { type ExtractResult, extract } from '@supabase/pg-delta/extract';
import { type Plan, plan } from '@supabase/pg-delta/plan';
import { changesOf } from './changes.ts';
import { compareOtherKinds, readOtherKinds } from './compare-other-kinds.ts';
import { OTHER_KINDS } from './other-kinds.ts';
import type { CatalogQuery, SchemaDifference } from './schema-record.ts';

type ExtractionPool = Parameters<typeof extract>[0];

/** Diagnostics about the library's own graph, which say nothing about what was compared. */
const INTERNAL = new Set(['dangling_edge', 'unresolved_dependency', 'orphaned_satellite']);

/**
 * Reads both schemas and plans the statements from `there` to `here`. Each query function belongs to one transaction,
 * which is read-only and has one snapshot.
 */
export async function planSchemas(here: CatalogQuery, there: CatalogQuery): Promise<SchemaDifference> {
  const wanted = await readSchema(here);
  const present = await readSchema(there);
  const { deltas, actions, preamble } = planBetween(present.schema, wanted.schema);
  const others = compareOtherKinds(wanted.others, present.others);
  const settings = actions.length === 0 ? [] : preamble.map(({ name, value }) => `SET ${name} = ${value}`);
  return {
    changes: [...changesOf(deltas), ...others.changes],
    statements: [...settings, ...others.before, ...actions.map(({ sql }) => sql), ...others.after],
    not_modelled: [...new Set([...others.notModelled, ...unread(wanted.schema), ...unread(present.schema)])],
  };
}

async function readSchema(query: CatalogQuery) {
  return { schema: await extract(poolOf(query)), others: await readOtherKinds(query) };
}

/** The library opens and ends a transaction, which is here the one that is open already. */
const TRANSACTION = /^(?:BEGIN|COMMIT|ROLLBACK)\b/;

function poolOf(query: CatalogQuery): ExtractionPool {
  const client = {
    query: (text: string, values?: unknown[]) =>
      TRANSACTION.test(text) ? Promise.resolve({ rows: [] }) : query(text, values),
    release: () => {},
  };
  return { connect: async () => client } as unknown as ExtractionPool;
}

/** Roles belong to the host, and both sides have the same ones, so they are only referred to. */
function planBetween(present: ExtractResult, wanted: ExtractResult): Plan {
  const roles = [...present.factBase.facts(), ...wanted.factBase.facts()].flatMap(({ id }) =>
    id.kind === 'role' ? [id.name] : [],
  );
  return plan(present.factBase, wanted.factBase, {
    scope: 'database',
    assumedRoles: [...new Set(roles)],
    redactSecrets: true,
  });
}

/** What could not be compared, except for the kinds of our own table. */
const unread = ({ diagnostics }: ExtractResult): string[] =>
  diagnostics
    .filter(({ code, severity }) => severity !== 'info' && !INTERNAL.has(code))
    .filter(({ code, context }) => code !== 'unmodeled_kind' || !(String(context?.kind) in OTHER_KINDS))
    .map(({ message }) => message);
