import type { Plan } from '@supabase/pg-delta/plan';
import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';

type SchemaChange = SchemaDifference['changes'][number];
type Delta = Plan['deltas'][number];
type ObjectId = Extract<Delta, { verb: 'add' }>['fact']['id'];

const WORDS: Partial<Record<ObjectId['kind'], string>> = {
  acl: 'grant',
  fdw: 'foreign data wrapper',
  publicationRel: 'published table',
  publicationSchema: 'published schema',
  typeAttribute: 'attribute',
};

/** `materializedView` → `materialized view` */
const inWords = (name: string) => name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
const kindOf = ({ kind }: ObjectId): string => WORDS[kind] ?? inWords(kind);

const PLAIN = /^[a-z_][a-z0-9_$]*$/;
const quoted = (name: string) => (PLAIN.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
const path = (...names: (string | null)[]) =>
  names
    .filter((name) => name !== null)
    .map(quoted)
    .join('.');

function identityOf(id: ObjectId): string {
  switch (id.kind) {
    case 'function':
    case 'procedure':
    case 'aggregate':
      return `${path(id.schema, id.name)}(${id.args.join(', ')})`;
    case 'column':
    case 'constraint':
    case 'trigger':
    case 'rule':
    case 'policy':
    case 'default':
      return path(id.schema, id.table, id.name);
    case 'typeAttribute':
      return path(id.schema, id.type, id.name);
    case 'publicationRel':
      return `${path(id.publication)}: ${path(id.schema, id.table)}`;
    case 'publicationSchema':
      return `${path(id.publication)}: ${path(id.schema)}`;
    case 'comment':
    case 'securityLabel':
      return `${kindOf(id.target)} ${identityOf(id.target)}`;
    case 'acl':
      return `${kindOf(id.target)} ${identityOf(id.target)}${id.column === undefined ? '' : `.${quoted(id.column)}`} to ${quoted(id.grantee)}`;
    case 'defaultPrivilege':
      return `${path(id.role, id.schema, id.objtype)} to ${quoted(id.grantee)}`;
    case 'userMapping':
      return path(id.server, id.role);
    case 'membership':
      return path(id.role, id.member);
    case 'extensionIntent':
      return path(id.ext, id.intentKind, id.key);
    default:
      return 'schema' in id ? path(id.schema, id.name) : path(id.name);
  }
}

/**
 * Differences of the library as changes of objects: without the parts of objects that are new or gone as a
 * whole.
 */
export function changesOf(deltas: readonly Delta[]): SchemaChange[] {
  const whole = new Set(deltas.flatMap((delta) => (isWhole(delta) ? [keyOf(delta.fact.id)] : [])));
  const changes = new Map<string, SchemaChange & { details: Set<string> }>();
  for (const delta of deltas) {
    const found = describe(delta, whole);
    if (!found) continue;
    const { id, change, detail } = found;
    const key = `${change} ${keyOf(id)}`;
    const known = changes.get(key) ?? {
      kind: kindOf(id),
      identity: identityOf(id),
      change,
      details: new Set<string>(),
    };
    if (detail !== undefined) known.details.add(detail);
    changes.set(key, known);
  }
  return [...changes.values()].map(({ details, ...change }) =>
    details.size === 0 ? change : { ...change, detail: [...details].sort().join(', ') },
  );
}

const keyOf = (id: ObjectId) => `${id.kind} ${identityOf(id)}`;
const isWhole = (delta: Delta) => delta.verb === 'add' || delta.verb === 'remove';

interface Described {
  id: ObjectId;
  change: SchemaChange['change'];
  detail?: string;
}

function describe(delta: Delta, whole: ReadonlySet<string>): Described | null {
  switch (delta.verb) {
    case 'add':
    case 'remove': {
      const { id, parent } = delta.fact;
      const isMetadata = 'target' in id;
      const owner = isMetadata ? id.target : parent;
      // A new table is one change, not one for each of its columns. The tables of a new schema are changes.
      if (owner && (isMetadata || owner.kind !== 'schema') && whole.has(keyOf(owner))) return null;
      return { id, change: delta.verb === 'add' ? 'added' : 'dropped' };
    }
    case 'set':
      return { id: delta.id, change: 'changed', detail: inWords(delta.attr) };
    default: {
      const { from, kind } = delta.edge;
      return kind === 'owner' && !whole.has(keyOf(from))
        ? { id: from, change: 'changed', detail: 'owner' }
        : null;
    }
  }
}
