import type pg from 'pg';

/**
 * An independent reader of a database's catalogs: tests judge copies and differences by its lines. No code of the
 * product takes part. A line names an object and everything that two objects of that name can differ in. Ids and
 * positions of dropped columns are left out, because they differ between equal databases.
 */

/** Objects of extensions come with the extension. */
const ofExtension = (catalog: string, oid: string) =>
  `EXISTS (SELECT FROM pg_depend WHERE classid = '${catalog}'::regclass AND objid = ${oid} AND deptype = 'e')`;
const own = (catalog: string, oid = 'o.oid') => `${oid} >= 16384 AND NOT ${ofExtension(catalog, oid)}`;

const SYSTEM = "('pg_catalog', 'information_schema', 'pg_toast')";
const name = (namespace: string, tag: string) =>
  `format('%I.%I', (SELECT nspname FROM pg_namespace WHERE oid = ${namespace}), ${tag})`;
const relation = (oid: string) =>
  `(SELECT ${name('relnamespace', 'relname')} FROM pg_class WHERE oid = ${oid})`;
const type = (oid: string) => `format_type(${oid}, NULL)`;
const routine = (oid: string) => `nullif(${oid}::oid, 0)::regprocedure`;
/** Columns that only newer versions have. */
const newer = (row: string, column: string) => `to_jsonb(${row}) ->> '${column}'`;
const sorted = (list: string) =>
  `(SELECT string_agg(x::text, ',' ORDER BY x::text) FROM unnest(${list}) AS x)`;

const OWN_CLASS = `SELECT c.* FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE nspname NOT IN ${SYSTEM} AND nspname NOT LIKE 'pg\\_t%' AND NOT ${ofExtension('pg_class', 'c.oid')}`;

interface CatalogReader {
  /** The first version that has the catalog, as `server_version_num`. */
  since?: number;
  from: string;
  /** SQL for the name of an object. */
  identity: string;
  /** SQL for its properties by name. */
  properties: Record<string, string>;
  where?: string;
  /** SQL for the owner and for the rights, which only some comparisons want. */
  owner?: string;
  rights?: string;
}

/** The catalogs that have something of a tenant's schema. */
const CATALOGS: Record<string, CatalogReader> = {
  schema: {
    from: 'pg_namespace AS o',
    identity: "format('%I', nspname)",
    properties: {},
    where: `nspname NOT IN ${SYSTEM} AND nspname NOT LIKE 'pg\\_t%' AND NOT ${ofExtension('pg_namespace', 'o.oid')}`,
    owner: 'nspowner',
    rights: 'o.nspacl',
  },
  relation: {
    from: `(${OWN_CLASS}) AS o`,
    identity: name('relnamespace', 'relname'),
    properties: {
      kind: 'relkind',
      persistence: 'relpersistence',
      options: sorted('reloptions'),
      toast: `(SELECT ${sorted('t.reloptions')} FROM pg_class AS t WHERE t.oid = o.reltoastrelid)`,
      identity: 'relreplident',
      security: 'relrowsecurity',
      forced: 'relforcerowsecurity',
      partition: 'pg_get_expr(relpartbound, o.oid)',
      key: "CASE relkind WHEN 'p' THEN pg_get_partkeydef(o.oid) END",
      of: `nullif(${type('nullif(reloftype, 0)')}, '???')`,
      method: '(SELECT amname FROM pg_am WHERE pg_am.oid = relam)',
      populated: 'relispopulated',
    },
    where: "relkind <> 'c'",
    owner: 'relowner',
    rights: 'o.relacl',
  },
  column: {
    from: `(SELECT a.*, c.relkind, row_number() OVER (PARTITION BY attrelid ORDER BY attnum) AS place
      FROM pg_attribute AS a JOIN (${OWN_CLASS}) AS c ON c.oid = attrelid
      WHERE attnum > 0 AND NOT attisdropped AND relkind NOT IN ('i', 'I', 'S')) AS o`,
    identity: `${relation('attrelid')} || format('.%I', attname)`,
    properties: {
      place: 'place',
      type: 'format_type(atttypid, atttypmod)',
      mandatory: 'attnotnull',
      default:
        '(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum)',
      identity: 'attidentity',
      generated: newer('o', 'attgenerated'),
      collation: `(SELECT ${name('collnamespace', 'collname')} FROM pg_collation WHERE oid = attcollation)`,
      storage: 'attstorage',
      compression: `nullif(${newer('o', 'attcompression')}, '')`,
      statistics: `nullif(${newer('o', 'attstattarget')}, '-1')`,
      options: sorted('attoptions'),
      foreign: sorted('attfdwoptions'),
      local: 'attislocal',
      parents: 'attinhcount',
    },
    where: 'true',
    rights: 'o.attacl',
  },
  'not null': {
    from: 'pg_constraint AS o',
    identity: `${relation('conrelid')} || format('.%I', conname)`,
    properties: {
      definition: 'pg_get_constraintdef(o.oid)',
      valid: 'convalidated',
      local: 'conislocal',
      parents: 'coninhcount',
      here: 'connoinherit',
    },
    where: `contype = 'n' AND conrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own)`,
  },
  constraint: {
    from: 'pg_constraint AS o',
    identity: `coalesce(${relation('nullif(conrelid, 0)')}, ${type('nullif(contypid, 0)')}) || format('.%I', conname)`,
    properties: {
      kind: 'contype',
      definition: 'pg_get_constraintdef(o.oid)',
      valid: 'convalidated',
      enforced: `coalesce(${newer('o', 'conenforced')}, 'true')`,
      deferrable: 'condeferrable',
      deferred: 'condeferred',
      local: 'conislocal',
      parents: 'coninhcount',
      parent: '(SELECT p.conname FROM pg_constraint AS p WHERE p.oid = o.conparentid)',
      // Of a key it has no meaning, and depends on how a partition got it.
      here: "contype NOT IN ('p', 'u', 'x') AND connoinherit",
    },
    where: `${own('pg_constraint')} AND contype NOT IN ('n', 't') AND (conrelid = 0 OR conrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own))`,
  },
  index: {
    from: 'pg_index AS o',
    identity: relation('indexrelid'),
    properties: {
      definition: 'pg_get_indexdef(indexrelid)',
      valid: 'indisvalid',
      ready: 'indisready',
      live: 'indislive',
      unique: 'indisunique',
      key: 'indisprimary',
      clustered: 'indisclustered',
      identity: 'indisreplident',
      parent: `(SELECT ${relation('inhparent')} FROM pg_inherits WHERE inhrelid = indexrelid)`,
      statistics: `(SELECT string_agg(attnum || '=' || attstattarget, ',' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = indexrelid AND attstattarget >= 0)`,
    },
    where: `indrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own)`,
  },
  inheritance: {
    from: 'pg_inherits AS o',
    identity: `${relation('inhrelid')} || ' < ' || ${relation('inhparent')}`,
    properties: { place: 'inhseqno', detached: `nullif(${newer('o', 'inhdetachpending')}, 'false')` },
    where: `inhrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own WHERE relkind NOT IN ('i', 'I'))`,
  },
  sequence: {
    from: 'pg_sequence AS o',
    identity: relation('seqrelid'),
    properties: {
      type: type('seqtypid'),
      range: "concat_ws(' ', seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle)",
      owner: `(SELECT concat_ws(' ', deptype, ${relation('refobjid')}, attname) FROM pg_depend
        JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
        WHERE classid = 'pg_class'::regclass AND objid = seqrelid AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i'))`,
    },
    where: `seqrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own)`,
  },
  trigger: {
    from: 'pg_trigger AS o',
    identity: `${relation('tgrelid')} || format('.%I', tgname)`,
    properties: {
      definition: 'pg_get_triggerdef(o.oid)',
      enabled: 'tgenabled',
      parent: `(SELECT ${relation('p.tgrelid')} FROM pg_trigger AS p WHERE p.oid = o.tgparentid)`,
    },
    where: `NOT tgisinternal AND tgrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own)`,
  },
  rule: {
    from: 'pg_rewrite AS o',
    identity: `${relation('ev_class')} || format('.%I', rulename)`,
    properties: { definition: 'pg_get_ruledef(o.oid)', enabled: 'ev_enabled' },
    where: `ev_class IN (SELECT oid FROM (${OWN_CLASS}) AS own)`,
  },
  policy: {
    from: 'pg_policy AS o',
    identity: `${relation('polrelid')} || format('.%I', polname)`,
    properties: {
      command: 'polcmd',
      permissive: 'polpermissive',
      roles:
        "(SELECT string_agg(CASE r WHEN 0 THEN 'PUBLIC' ELSE r::regrole::text END, ',' ORDER BY r::regrole::text) FROM unnest(polroles) AS r)",
      using: 'pg_get_expr(polqual, polrelid)',
      check: 'pg_get_expr(polwithcheck, polrelid)',
    },
  },
  'statistics object': {
    from: 'pg_statistic_ext AS o',
    identity: name('stxnamespace', 'stxname'),
    properties: {
      definition: 'pg_get_statisticsobjdef(o.oid)',
      target: `nullif(${newer('o', 'stxstattarget')}, '-1')`,
    },
    where: own('pg_statistic_ext'),
    owner: 'stxowner',
  },
  type: {
    from: `pg_type AS o LEFT JOIN pg_range AS r ON r.rngtypid = o.oid`,
    identity: name('typnamespace', 'typname'),
    properties: {
      kind: 'typtype',
      category:
        "concat_ws(' ', typcategory, typispreferred, typdelim, typalign, typlen, typbyval, typstorage)",
      base: 'format_type(nullif(typbasetype, 0), typtypmod)',
      mandatory: 'typnotnull',
      default: 'typdefault',
      collation: `CASE typtype WHEN 'd' THEN (SELECT ${name('collnamespace', 'collname')} FROM pg_collation WHERE oid = typcollation) END`,
      functions:
        "concat_ws(' ', CASE typtype WHEN 'b' THEN concat_ws(' ', typinput, typoutput, typreceive, typsend, typmodin, typmodout, typanalyze) END)",
      range: `concat_ws(' ', ${type('rngsubtype')}, (SELECT opcname FROM pg_opclass WHERE oid = rngsubopc), nullif(rngcanonical::oid, 0)::regproc,
        nullif(rngsubdiff::oid, 0)::regproc, (SELECT collname FROM pg_collation WHERE oid = rngcollation), ${type("(to_jsonb(r) ->> 'rngmultitypid')::oid")})`,
      labels:
        "(SELECT string_agg(quote_literal(enumlabel), ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = o.oid)",
    },
    where: `${own('pg_type')} AND typcategory <> 'A' AND (typrelid = 0 OR EXISTS (SELECT FROM pg_class WHERE oid = typrelid AND relkind = 'c'))
      AND typtype <> 'm'`,
    owner: 'typowner',
    rights: 'o.typacl',
  },
  routine: {
    from: 'pg_proc AS o LEFT JOIN pg_aggregate AS a ON a.aggfnoid = o.oid',
    identity: `${name('pronamespace', 'proname')} || '(' || pg_get_function_identity_arguments(o.oid) || ')'`,
    properties: {
      definition:
        "CASE prokind WHEN 'a' THEN pg_get_function_result(o.oid) ELSE pg_get_functiondef(o.oid) END",
      binary: 'probin',
      aggregate: `CASE prokind WHEN 'a' THEN concat_ws(' ', aggkind, aggnumdirectargs, aggtransfn, aggfinalfn, aggcombinefn, aggserialfn,
        aggdeserialfn, aggmtransfn, aggminvtransfn, aggmfinalfn, aggfinalextra, aggmfinalextra, aggfinalmodify, aggmfinalmodify,
        nullif(aggsortop, 0)::regoperator, ${type('aggtranstype')}, aggtransspace, aggmtransspace, agginitval, aggminitval, proparallel) END`,
    },
    where: own('pg_proc'),
    owner: 'proowner',
    // Without a list, everybody may run it, as with one that says so.
    rights: "coalesce(o.proacl, acldefault('f', o.proowner))",
  },
  operator: {
    from: 'pg_operator AS o',
    identity: 'o.oid::regoperator::text',
    properties: {
      result: type('oprresult'),
      functions:
        "concat_ws(' ', oprcode, nullif(oprrest::oid, 0)::regproc, nullif(oprjoin::oid, 0)::regproc)",
      others:
        "concat_ws(' ', nullif(oprcom, 0)::regoperator, nullif(oprnegate, 0)::regoperator, oprcanmerge, oprcanhash)",
    },
    where: `${own('pg_operator')} AND oprcode <> 0`,
    owner: 'oprowner',
  },
  'operator class': {
    from: 'pg_opclass AS o',
    identity: `${name('opcnamespace', 'opcname')} || ' ' || (SELECT amname FROM pg_am WHERE oid = opcmethod)`,
    properties: {
      type: type('opcintype'),
      default: 'opcdefault',
      stored: type('nullif(opckeytype, 0)'),
      family: `(SELECT ${name('opfnamespace', 'opfname')} FROM pg_opfamily WHERE oid = opcfamily)`,
    },
    where: own('pg_opclass'),
    owner: 'opcowner',
  },
  'operator family': {
    from: 'pg_opfamily AS o',
    identity: `${name('opfnamespace', 'opfname')} || ' ' || (SELECT amname FROM pg_am WHERE oid = opfmethod)`,
    properties: {
      operators:
        "(SELECT string_agg(concat_ws(' ', amopstrategy, amopopr::regoperator, amoppurpose), ',' ORDER BY amopstrategy, amopopr::regoperator::text) FROM pg_amop WHERE amopfamily = o.oid)",
      functions: `(SELECT string_agg(concat_ws(' ', amprocnum, amproc::regprocedure, ${type('amproclefttype')}), ',' ORDER BY amprocnum, amproc::regprocedure::text) FROM pg_amproc WHERE amprocfamily = o.oid)`,
    },
    where: own('pg_opfamily'),
    owner: 'opfowner',
  },
  cast: {
    from: 'pg_cast AS o',
    identity: `${type('castsource')} || ' AS ' || ${type('casttarget')}`,
    properties: { function: routine('castfunc'), context: 'castcontext', method: 'castmethod' },
    where: own('pg_cast'),
  },
  collation: {
    from: 'pg_collation AS o',
    identity: name('collnamespace', 'collname'),
    properties: {
      provider: 'collprovider',
      locale: `concat_ws(' ', ${newer('o', 'collcollate')}, ${newer('o', 'collctype')}, ${newer('o', 'colliculocale')}, ${newer('o', 'colllocale')})`,
      rules: newer('o', 'collicurules'),
      deterministic: 'collisdeterministic',
    },
    where: own('pg_collation'),
    owner: 'collowner',
  },
  conversion: {
    from: 'pg_conversion AS o',
    identity: name('connamespace', 'conname'),
    properties: { definition: "concat_ws(' ', conforencoding, contoencoding, conproc, condefault)" },
    where: own('pg_conversion'),
    owner: 'conowner',
  },
  'text search configuration': {
    from: 'pg_ts_config AS o',
    identity: name('cfgnamespace', 'cfgname'),
    properties: {
      parser: '(SELECT prsname FROM pg_ts_parser WHERE oid = cfgparser)',
      mappings:
        "(SELECT string_agg(concat_ws(' ', maptokentype, mapseqno, mapdict::regdictionary), ',' ORDER BY maptokentype, mapseqno) FROM pg_ts_config_map WHERE mapcfg = o.oid)",
    },
    where: own('pg_ts_config'),
    owner: 'cfgowner',
  },
  'text search dictionary': {
    from: 'pg_ts_dict AS o',
    identity: name('dictnamespace', 'dictname'),
    properties: {
      template: '(SELECT tmplname FROM pg_ts_template WHERE oid = dicttemplate)',
      options: 'dictinitoption',
    },
    where: own('pg_ts_dict'),
    owner: 'dictowner',
  },
  'text search parser': {
    from: 'pg_ts_parser AS o',
    identity: name('prsnamespace', 'prsname'),
    properties: { functions: "concat_ws(' ', prsstart, prstoken, prsend, prsheadline, prslextype)" },
    where: own('pg_ts_parser'),
  },
  'text search template': {
    from: 'pg_ts_template AS o',
    identity: name('tmplnamespace', 'tmplname'),
    properties: { functions: "concat_ws(' ', tmplinit, tmpllexize)" },
    where: own('pg_ts_template'),
  },
  language: {
    from: 'pg_language AS o',
    identity: "format('%I', lanname)",
    properties: { handler: routine('lanplcallfoid'), trusted: 'lanpltrusted' },
    where: own('pg_language'),
    owner: 'lanowner',
    rights: 'o.lanacl',
  },
  transform: {
    from: 'pg_transform AS o',
    identity: `${type('trftype')} || ' ' || (SELECT lanname FROM pg_language WHERE oid = trflang)`,
    properties: { from: routine('trffromsql'), to: routine('trftosql') },
    where: own('pg_transform'),
  },
  'access method': {
    from: 'pg_am AS o',
    identity: "format('%I', amname)",
    properties: { handler: 'amhandler', kind: 'amtype' },
    where: own('pg_am'),
  },
  extension: {
    from: 'pg_extension AS o',
    identity: "format('%I', extname)",
    properties: {
      schema: '(SELECT nspname FROM pg_namespace WHERE oid = extnamespace)',
      version: 'extversion',
    },
  },
  'event trigger': {
    from: 'pg_event_trigger AS o',
    identity: "format('%I', evtname)",
    properties: { definition: "concat_ws(' ', evtevent, evtfoid::regproc, evtenabled, evttags)" },
    where: own('pg_event_trigger'),
    owner: 'evtowner',
  },
  publication: {
    from: 'pg_publication AS o',
    identity: "format('%I', pubname)",
    properties: {
      publishes: `concat_ws(' ', puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, ${newer('o', 'pubgencols')})`,
      tables: `(SELECT ${sorted(`array_agg(${relation('prrelid')})`)} FROM pg_publication_rel WHERE prpubid = o.oid)`,
    },
  },
  'published table': {
    since: 150_000,
    from: 'pg_publication_rel AS o',
    identity: `(SELECT format('%I: ', pubname) FROM pg_publication WHERE oid = prpubid) || ${relation('prrelid')}`,
    properties: {
      columns:
        "(SELECT string_agg(attname, ',' ORDER BY attname) FROM pg_attribute WHERE attrelid = prrelid AND attnum = ANY (prattrs::int2[]))",
      rows: 'pg_get_expr(prqual, prrelid)',
    },
  },
  'published schema': {
    since: 150_000,
    from: 'pg_publication_namespace AS o',
    identity:
      "(SELECT format('%I: ', pubname) FROM pg_publication WHERE oid = pnpubid) || pnnspid::regnamespace",
    properties: {},
  },
  'foreign data wrapper': {
    from: 'pg_foreign_data_wrapper AS o',
    identity: "format('%I', fdwname)",
    properties: {
      functions: `concat_ws(' ', ${routine('fdwhandler')}, ${routine('fdwvalidator')})`,
      options: sorted('fdwoptions'),
    },
    where: own('pg_foreign_data_wrapper'),
    owner: 'fdwowner',
    rights: 'o.fdwacl',
  },
  'foreign server': {
    from: 'pg_foreign_server AS o',
    identity: "format('%I', srvname)",
    properties: {
      wrapper: '(SELECT fdwname FROM pg_foreign_data_wrapper WHERE oid = srvfdw)',
      options: `concat_ws(' ', srvtype, srvversion, ${sorted('srvoptions')})`,
    },
    owner: 'srvowner',
    rights: 'o.srvacl',
  },
  'foreign table': {
    from: 'pg_foreign_table AS o',
    identity: relation('ftrelid'),
    properties: {
      server: '(SELECT srvname FROM pg_foreign_server WHERE oid = ftserver)',
      options: sorted('ftoptions'),
    },
  },
  comment: {
    from: `pg_description AS o CROSS JOIN LATERAL pg_identify_object(classoid, objoid, objsubid) AS i`,
    identity: "concat_ws(' ', i.type, i.identity)",
    properties: { text: 'description' },
    where: `(objoid >= 16384 OR (classoid = 'pg_namespace'::regclass AND i.name = 'public'))
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = o.classoid AND d.objid = o.objoid AND d.deptype = 'e')`,
  },
  'default privileges': {
    from: 'pg_default_acl AS o',
    identity: "concat_ws(' ', defaclrole::regrole, nullif(defaclnamespace, 0)::regnamespace, defaclobjtype)",
    properties: {},
    rights: 'o.defaclacl',
  },
  'security label': {
    from: 'pg_seclabel AS o CROSS JOIN LATERAL pg_identify_object(classoid, objoid, objsubid) AS i',
    identity: "concat_ws(' ', i.type, i.identity, provider)",
    properties: { label: 'label' },
  },
};

/** Names of the catalogs that have a line. */
export const CATALOG_KINDS = Object.keys(CATALOGS);

const propertyPairs = (properties: Record<string, string>) =>
  Object.entries(properties).map(([property, value]) => `'${property}', (${value})::text`);

function queryOf(kind: string, found: CatalogReader, isWithRights: boolean): string {
  const { from, identity, properties, where = 'true', owner, rights } = found;
  const who = isWithRights
    ? {
        ...(owner && { owner: `${owner}::regrole` }),
        ...(rights && {
          rights: `(SELECT string_agg(concat_ws(' ', grantor::regrole, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, privilege_type, is_grantable), ','
            ORDER BY grantor::regrole::text, grantee::regrole::text, privilege_type) FROM aclexplode(${rights}))`,
        }),
      }
    : {};
  const pairs = propertyPairs({ ...properties, ...who });
  const definition = `jsonb_strip_nulls(jsonb_build_object(${pairs.join(', ')}))`;
  return `SELECT '${kind} ' || (${identity}) || ': ' || ${definition} AS line FROM ${from} WHERE ${where}`;
}

const VALUES = `SELECT format('SELECT %L || last_value || '' '' || is_called AS line FROM %s', 'value ' || ${relation('seqrelid')} || ': ', ${relation('seqrelid')}) AS sql
  FROM pg_sequence WHERE seqrelid IN (SELECT oid FROM (${OWN_CLASS}) AS own)`;

interface ReaderOptions {
  /** Owners and rights too. */
  rights?: boolean;
  /** The values of sequences too. */
  values?: boolean;
}

/** The catalogs of the client's database as sorted lines. The client may be of any version from 13. */
export async function catalogLines(
  client: Pick<pg.Client, 'query'>,
  { rights = false, values = false }: ReaderOptions = {},
): Promise<string[]> {
  const { rows: settings } = await client.query<{ path: string; version: string }>(
    "SELECT current_setting('search_path') AS path, current_setting('server_version_num') AS version",
  );
  const version = Number(settings[0]?.version);
  await client.query("SELECT set_config('search_path', 'pg_catalog', false)");
  const queries = Object.entries(CATALOGS)
    .filter(([, { since = 0 }]) => since <= version)
    .map(([kind, found]) => queryOf(kind, found, rights));
  if (values) queries.push(...(await client.query<{ sql: string }>(VALUES)).rows.map(({ sql }) => sql));
  const lines: string[] = [];
  for (const query of queries)
    lines.push(...(await client.query<{ line: string }>(query)).rows.map(({ line }) => line));
  await client.query("SELECT set_config('search_path', $1, false)", [settings[0]?.path]);
  return lines.sort();
}

/** Lines that only one of two databases has: `-` the first one, `+` the second one. Repeated lines count. */
export function differentLines(first: readonly string[], second: readonly string[]): string[] {
  const counts = new Map<string, number>();
  for (const line of first) counts.set(line, (counts.get(line) ?? 0) - 1);
  for (const line of second) counts.set(line, (counts.get(line) ?? 0) + 1);
  return [...counts]
    .filter(([, count]) => count !== 0)
    .flatMap(([line, count]) =>
      Array.from({ length: Math.abs(count) }, () => `${count < 0 ? '-' : '+'} ${line}`),
    )
    .sort((a, b) => a.slice(2).localeCompare(b.slice(2)));
}
