import { join } from 'node:path';

/** Schemas that a copy has to keep, one of each construct. */
export const FOLDER = join(import.meta.dirname, 'schemas');

/** What PostgreSQL says about all own objects of a database, without a library or a dump. */
const OWN = "n.nspname !~ '^pg_' and n.nspname <> 'information_schema'";
export const CATALOG = `select * from (
  select 'column' as kind, format('%s.%s %s %s %s %s %s %s', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid)) as text
    from pg_attribute a join pg_class c on c.oid = attrelid join pg_namespace n on n.oid = relnamespace left join pg_attrdef d on d.adrelid = attrelid and d.adnum = attnum where ${OWN} and attnum > 0 and not attisdropped and relkind in ('r', 'p', 'v', 'm')
  union all select 'relation', format('%s %s %s %s %s %s', c.oid::regclass, relkind, relpersistence, relrowsecurity, relforcerowsecurity, pg_get_expr(relpartbound, c.oid)) from pg_class c join pg_namespace n on n.oid = relnamespace where ${OWN} and relkind in ('r', 'p', 'v', 'm', 'S')
  union all select 'populated', c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = relnamespace where ${OWN} and relkind = 'm' and relispopulated
  union all select 'index', format('%s %s %s', pg_get_indexdef(i.indexrelid), i.indisvalid, p.inhparent::regclass) from pg_index i join pg_class c on c.oid = indexrelid join pg_namespace n on n.oid = relnamespace left join pg_inherits p on p.inhrelid = c.oid where ${OWN} and (i.indisvalid or c.relkind = 'I')
  union all select 'constraint', format('%s %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(x.oid), convalidated) from pg_constraint x join pg_namespace n on n.oid = connamespace where ${OWN}
  union all select 'trigger', format('%s %s', pg_get_triggerdef(x.oid), tgenabled) from pg_trigger x where not tgisinternal
  union all select 'view', pg_get_viewdef(c.oid) from pg_class c join pg_namespace n on n.oid = relnamespace where ${OWN} and relkind in ('v', 'm')
  union all select 'policy', format('%s %s %s %s', polrelid::regclass, polname, pg_get_expr(polqual, polrelid), polroles) from pg_policy
  union all select 'function', pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = pronamespace where ${OWN} and prokind in ('f', 'p')
  union all select 'type', format('%s %s %s %s', t.oid::regtype, typtype, typnotnull, typdefault) from pg_type t join pg_namespace n on n.oid = typnamespace where ${OWN} and typtype in ('d', 'e', 'r', 'm')
  union all select 'parent', format('%s %s %s', inhrelid::regclass, inhparent::regclass, inhseqno) from pg_inherits
  union all select 'words', cfgname::text from pg_ts_config where oid >= 16384
  union all select 'operator', oid::regoperator::text from pg_operator where oid >= 16384
  union all select 'collation', format('%s %s %s', collname, collisdeterministic, colllocale) from pg_collation where oid >= 16384
) as objects order by kind collate "C", text collate "C"`;
/** The next values of sequences, which it takes. */
export const NEXT_VALUES = `select relname::text as name, nextval(c.oid::regclass)::text as next from pg_class c join pg_namespace n on n.oid = relnamespace where relkind = 'S' and ${OWN} order by relname collate "C"`;
