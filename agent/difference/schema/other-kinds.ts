import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import type { CatalogQuery } from './comparison-thread.ts';

/**
 * A kind of object, or of setting, that the library does not compare. Its expressions are of one row `o` of a
 * catalog.
 */
interface OtherKind {
  catalog: string;
  /** SQL for the name, with its schema where it has one. */
  identity: string;
  /** SQL for everything in which two objects of one name can differ. */
  definition: string;
  /**
   * SQL for the rows; by default every object that is neither PostgreSQL's own nor a part of an extension.
   */
  where?: string;
  /** SQL for the statements that make it and remove it. */
  set?: string;
  reset?: string;
}

/** The first id of objects that are not PostgreSQL's own. */
const FIRST_OWN = 16_384;

const named = (namespace: string, name: string) =>
  `(SELECT format('%I.%I', nspname, ${name}) FROM pg_namespace WHERE pg_namespace.oid = ${namespace})`;
const typeName = (oid: string) => `format_type(${oid}, NULL)`;
const relation = (oid: string) =>
  `(SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = ${oid})`;

const OWN_RELATION = (oid: string) =>
  `${oid} >= ${FIRST_OWN} AND EXISTS (SELECT FROM pg_class WHERE pg_class.oid = ${oid} AND relkind IN ('r', 'p', 'm', 'f'))
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = ${oid} AND deptype = 'e')`;

/** A setting of a column that is not the default of its type. */
const columnSetting = (value: string, isSet: string, set: string, reset: string): OtherKind => {
  const alter = (change: string) =>
    `format('ALTER TABLE %s ALTER COLUMN %I ', ${relation('attrelid')}, attname) || ${change}`;
  return {
    catalog: 'pg_attribute',
    identity: `format('%s.%I', ${relation('attrelid')}, attname)`,
    definition: value,
    where: `attnum > 0 AND NOT attisdropped AND ${isSet} AND ${OWN_RELATION('attrelid')}`,
    set: alter(set),
    reset: alter(`'${reset}'`),
  };
};

const STORAGE =
  "CASE attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END";
const COMPRESSION = "CASE attcompression WHEN 'p' THEN 'pglz' ELSE 'lz4' END";
const CAST = `format('(%s AS %s)', ${typeName('castsource')}, ${typeName('casttarget')})`;
const OPERATOR = `format('%s.%s (%s, %s)', (SELECT quote_ident(nspname) FROM pg_namespace WHERE pg_namespace.oid = oprnamespace),
  oprname, CASE oprleft WHEN 0 THEN 'NONE' ELSE ${typeName('oprleft')} END, ${typeName('oprright')})`;
const TEMPLATE = `(SELECT ${named('tmplnamespace', 'tmplname')} FROM pg_ts_template WHERE pg_ts_template.oid = dicttemplate)`;

export const OTHER_KINDS: Record<string, OtherKind> = {
  'statistics object': {
    catalog: 'pg_statistic_ext',
    identity: named('stxnamespace', 'stxname'),
    definition: "concat_ws(' ', pg_get_statisticsobjdef(o.oid), stxowner::regrole)",
    set: 'pg_get_statisticsobjdef(o.oid)',
    reset: `'DROP STATISTICS IF EXISTS ' || ${named('stxnamespace', 'stxname')}`,
  },
  'storage of a column': columnSetting(
    STORAGE,
    'attstorage <> (SELECT typstorage FROM pg_type WHERE pg_type.oid = atttypid)',
    `'SET STORAGE ' || ${STORAGE}`,
    'SET STORAGE DEFAULT',
  ),
  'compression of a column': columnSetting(
    COMPRESSION,
    "attcompression <> ''",
    `'SET COMPRESSION ' || ${COMPRESSION}`,
    'SET COMPRESSION default',
  ),
  'statistics target of a column': columnSetting(
    'attstattarget::text',
    'attstattarget IS NOT NULL',
    "'SET STATISTICS ' || attstattarget",
    'SET STATISTICS DEFAULT',
  ),
  'options of a column': columnSetting(
    "array_to_string(attoptions, ', ')",
    'attoptions IS NOT NULL',
    "format('SET (%s)', array_to_string(attoptions, ', '))",
    'RESET (n_distinct, n_distinct_inherited)',
  ),
  clustering: {
    catalog: 'pg_index',
    identity: relation('indrelid'),
    definition: relation('indexrelid'),
    where: `indisclustered AND ${OWN_RELATION('indrelid')}`,
    set: `format('ALTER TABLE %s CLUSTER ON %I', ${relation('indrelid')}, (SELECT relname FROM pg_class WHERE pg_class.oid = indexrelid))`,
    reset: `format('ALTER TABLE %s SET WITHOUT CLUSTER', ${relation('indrelid')})`,
  },
  cast: {
    catalog: 'pg_cast',
    identity: CAST,
    definition: "concat_ws(' ', castfunc::regprocedure, castcontext, castmethod)",
    set: `format('CREATE CAST %s %s%s', ${CAST},
      CASE castmethod WHEN 'i' THEN 'WITH INOUT' WHEN 'b' THEN 'WITHOUT FUNCTION' ELSE 'WITH FUNCTION ' || castfunc::regprocedure END,
      CASE castcontext WHEN 'i' THEN ' AS IMPLICIT' WHEN 'a' THEN ' AS ASSIGNMENT' ELSE '' END)`,
    reset: `'DROP CAST ' || ${CAST}`,
  },
  operator: {
    catalog: 'pg_operator',
    identity: OPERATOR,
    definition: `concat_ws(' ', oprcode, oprcom::regoperator, oprnegate::regoperator, oprrest, oprjoin, oprcanmerge,
      oprcanhash, oprowner::regrole)`,
    reset: `'DROP OPERATOR ' || ${OPERATOR}`,
  },
  'operator class': {
    catalog: 'pg_opclass',
    identity: `concat(${named('opcnamespace', 'opcname')}, ' ', (SELECT amname FROM pg_am WHERE pg_am.oid = opcmethod))`,
    definition: `concat_ws(' ', ${typeName('opcintype')}, opcdefault, ${typeName('opckeytype')}, opcowner::regrole)`,
  },
  'operator family': {
    catalog: 'pg_opfamily',
    identity: `concat(${named('opfnamespace', 'opfname')}, ' ', (SELECT amname FROM pg_am WHERE pg_am.oid = opfmethod))`,
    definition: `concat_ws(' ', opfowner::regrole,
      (SELECT string_agg(concat_ws(' ', amopstrategy, amopopr::regoperator), ', ' ORDER BY amopstrategy, amopopr::regoperator::text)
       FROM pg_amop WHERE amopfamily = o.oid),
      (SELECT string_agg(concat_ws(' ', amprocnum, amproc::regprocedure), ', ' ORDER BY amprocnum, amproc::regprocedure::text)
       FROM pg_amproc WHERE amprocfamily = o.oid))`,
  },
  'text search configuration': {
    catalog: 'pg_ts_config',
    identity: named('cfgnamespace', 'cfgname'),
    definition: `concat_ws(' ', cfgowner::regrole, (SELECT prsname FROM pg_ts_parser WHERE pg_ts_parser.oid = cfgparser),
      (SELECT string_agg(concat_ws(' ', maptokentype, mapseqno, mapdict::regdictionary), ', ' ORDER BY maptokentype, mapseqno)
       FROM pg_ts_config_map WHERE mapcfg = o.oid))`,
    reset: `'DROP TEXT SEARCH CONFIGURATION ' || ${named('cfgnamespace', 'cfgname')}`,
  },
  'text search dictionary': {
    catalog: 'pg_ts_dict',
    identity: named('dictnamespace', 'dictname'),
    definition: `concat_ws(' ', dictowner::regrole, dictinitoption, ${TEMPLATE})`,
    set: `format('CREATE TEXT SEARCH DICTIONARY %s (%s)', ${named('dictnamespace', 'dictname')},
      concat_ws(', ', 'TEMPLATE = ' || ${TEMPLATE}, nullif(dictinitoption, '')))`,
    reset: `'DROP TEXT SEARCH DICTIONARY ' || ${named('dictnamespace', 'dictname')}`,
  },
  'text search parser': {
    catalog: 'pg_ts_parser',
    identity: named('prsnamespace', 'prsname'),
    definition: "concat_ws(' ', prsstart, prstoken, prsend, prsheadline, prslextype)",
  },
  'text search template': {
    catalog: 'pg_ts_template',
    identity: named('tmplnamespace', 'tmplname'),
    definition: "concat_ws(' ', tmplinit, tmpllexize)",
  },
  language: {
    catalog: 'pg_language',
    identity: "format('%I', lanname)",
    definition: "concat_ws(' ', lanowner::regrole, lanpltrusted, lanplcallfoid::regprocedure, lanacl)",
  },
  transform: {
    catalog: 'pg_transform',
    identity: `concat(${typeName('trftype')}, ' ', (SELECT lanname FROM pg_language WHERE pg_language.oid = trflang))`,
    definition: "concat_ws(' ', trffromsql::regprocedure, trftosql::regprocedure)",
  },
  // Only comments on the kinds above: the library compares the others.
  comment: {
    catalog: 'pg_description',
    identity: "(SELECT concat(type, ' ', identity) FROM pg_identify_object(classoid, objoid, objsubid))",
    definition: 'description',
    where: `objoid >= ${FIRST_OWN} AND classoid IN ('pg_statistic_ext'::regclass, 'pg_cast'::regclass,
      'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass, 'pg_ts_config'::regclass,
      'pg_ts_dict'::regclass, 'pg_ts_parser'::regclass, 'pg_ts_template'::regclass, 'pg_language'::regclass)
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = o.classoid AND d.objid = o.objoid AND d.deptype = 'e')`,
  },
};

const queryOf = ([kind, found]: [string, OtherKind]) => {
  const { catalog, identity, definition, where, set = 'NULL', reset = 'NULL' } = found;
  const own = `o.oid >= ${FIRST_OWN} AND NOT EXISTS (
    SELECT FROM pg_depend WHERE classid = '${catalog}'::regclass AND objid = o.oid AND deptype IN ('e', 'i'))`;
  return `SELECT '${kind}' AS kind, ${identity} AS identity, ${definition} AS definition,
    ${set} AS set, ${reset} AS reset FROM ${catalog} AS o WHERE ${where ?? own}`;
};

/** Every object of these kinds: columns `kind`, `identity`, `definition`, `set`, `reset`. */
const OTHER_OBJECTS = Object.entries(OTHER_KINDS).map(queryOf).join(' UNION ALL ');

/** An object, or a setting, of a kind that the library does not compare. */
export interface OtherObject {
  kind: string;
  identity: string;
  definition: string;
  /** Statements that make it and remove it. */
  set: string | null;
  reset: string | null;
}

export async function readOtherKinds(query: CatalogQuery): Promise<OtherObject[]> {
  const { rows } = await query(OTHER_OBJECTS);
  return rows as unknown as OtherObject[];
}

interface OtherDifference {
  changes: SchemaDifference['changes'];
  /** Statements that run before the library's, which may remove what these objects depend on. */
  first: string[];
  last: string[];
  notModelled: string[];
}

const byName = (objects: readonly OtherObject[]) =>
  new Map(objects.map((object) => [`${object.kind} ${object.identity}`, object]));

export function compareOtherKinds(
  before: readonly OtherObject[],
  after: readonly OtherObject[],
): OtherDifference {
  const difference: OtherDifference = { changes: [], first: [], last: [], notModelled: [] };
  const [old, present] = [byName(before), byName(after)];
  for (const name of [...new Set([...old.keys(), ...present.keys()])].sort()) {
    const [from, to] = [old.get(name), present.get(name)];
    const { kind, identity } = to ?? (from as OtherObject);
    if (to?.definition === from?.definition) continue;
    const change = from === undefined ? 'added' : to === undefined ? 'dropped' : 'changed';
    difference.changes.push({ kind, identity, change });
    if ((to && to.set === null) || (from && from.reset === null)) {
      difference.notModelled.push(`No statement is made for the ${kind} ${identity} (${change}).`);
      continue;
    }
    if (from?.reset) difference.first.push(from.reset);
    if (to?.set) difference.last.push(to.set);
  }
  return difference;
}
