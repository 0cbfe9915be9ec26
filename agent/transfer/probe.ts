import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import {
  SOURCE_TABLES_MAX,
  type SourceFinding,
  type SourceTable,
} from '../../shared/protocol/transfer-operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { fitting } from '../difference/schema/compare-schemas.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { listExtensions } from '../postgres/extensions.ts';
import { extensionsOfProject, readProjectExtensions } from '../postgres/project-extensions.ts';
import { ProjectGate } from '../process/project-gate.ts';
import { inBranch } from '../rows/branch-session.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { limitFinding, type PlacesHost } from './follow-places.ts';
import { isLeftAlone, type LeftAlone, readLeftAlone, spellings, sqlName } from './left-alone.ts';
import {
  finding,
  listNames,
  numberOf,
  readSourceUrl,
  resolveSource,
  type Source,
  short,
} from './source-address.ts';
import { isPublished, readCatalog, type SourceCatalog, type TableRow } from './source-catalog.ts';
import { readExtensionUse } from './source-extensions.ts';
import { policyOf } from './source-policy.ts';
import { inSource } from './source-session.ts';
import type { PublishedTable } from './source-slot.ts';
import { type TrialHost, trySchema } from './try-schema.ts';

export interface ProbeHost extends TrialHost, PlacesHost {
  probes: ProjectGate;
}

/** A probe makes this host connect to an address of a tenant's choice. */
export const openProbeGate = () => new ProjectGate({ ofProject: 1, ofHost: 4, noun: 'check of a source' });

/** Milliseconds for the whole catalog. */
const READ_WITHIN_MS = 20_000;

type Wanted = Omit<Params<'transfer.probe'>, 'source_url' | 'into'>;
type Probe = MethodResult<'transfer.probe'>;

/**
 * Reads whether a database can be followed or copied, in one read-only transaction there.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, and as `inBranch` for the branch that has to be empty
 */
export async function probeSource(
  host: ProbeHost,
  { source_url, into, ...wanted }: Params<'transfer.probe'>,
): Promise<Probe> {
  const { project_id } = wanted;
  const leave = host.probes.enter(project_id);
  try {
    const [examined, isEmpty, overLimit] = await Promise.all([
      examineSource(host, source_url, wanted),
      into === null || inBranch(host, into, 'read', isEmptyDatabase),
      wanted.use === 'follow' ? limitFinding(host, project_id, policyOf(wanted)) : [],
    ]);
    const here = [...overLimit, ...(isEmpty ? [] : [NOT_EMPTY])];
    if (!examined.ok) return { source: null, findings: [examined.failure, ...here] };
    const { source, findings } = examined.value.probe;
    const found = [...here, ...findings];
    if (into === null || found.some(({ severity }) => severity === 'error'))
      return { source, findings: found };
    const tried = await trySchema(host, {
      project_id,
      use: wanted.use,
      source: examined.value.source,
      tables: wanted.tables === null ? null : examined.value.tables,
      leftAlone: examined.value.leftAlone,
    });
    return { source, findings: firstOf([...found, ...tried]) };
  } finally {
    leave();
  }
}

export const NOT_EMPTY = finding(
  'not_empty',
  'main is not empty. Import into the main of a new project, or drop its tables first.',
  { path: '' },
);

const IS_OWN_TYPE = `NOT (typtype = 'b' AND typelem <> 0) AND typtype <> 'm' AND (typrelid = 0 OR EXISTS (
  SELECT FROM pg_catalog.pg_class AS composite WHERE composite.oid = typrelid AND composite.relkind = 'c'))`;

/** Objects that a copy could mix with its own. Each of them has a row in one of these catalogs. */
const OWN_OBJECTS = [
  // Indexes, arrays and types of rows are parts of others, and no members of an extension by themselves.
  ['pg_class', 'relnamespace', "relkind NOT IN ('i', 'I', 'c')"],
  ['pg_proc', 'pronamespace', 'true'],
  ['pg_type', 'typnamespace', IS_OWN_TYPE],
]
  .map(
    ([catalog, namespace, counts]) => `SELECT FROM pg_catalog.${catalog} AS object
       JOIN pg_catalog.pg_namespace AS schema ON schema.oid = object.${namespace}
       WHERE ${counts} AND nspname !~ '^pg_' AND nspname <> 'information_schema' AND NOT EXISTS (
         SELECT FROM pg_catalog.pg_depend AS dependency WHERE dependency.classid = 'pg_catalog.${catalog}'::pg_catalog.regclass
           AND dependency.objid = object.oid AND dependency.deptype = 'e')`,
  )
  .join(' UNION ALL ');

/** Returns whether a branch has nothing of its own but extensions. */
export async function isEmptyDatabase(session: Session): Promise<boolean> {
  return (await session.query(`${OWN_OBJECTS} LIMIT 1`)).rows.length === 0;
}

/** A source that was read, with the address that it was read at. */
export interface Examined {
  source: Source;
  probe: Probe & { source: NonNullable<Probe['source']> };
  /** The tables that are meant, by schema and name. */
  tables: [schema: string, name: string][];
  /** Tables whose changes, or new rows, follow. */
  published: PublishedTable[];
  leftAlone: LeftAlone;
}

/** @returns why the source could not be read */
export async function examineSource(
  host: Pick<ProbeHost, 'settings' | 'postgres'>,
  url: string,
  wanted: Wanted,
): Promise<Result<Examined, SourceFinding>> {
  const parts = readSourceUrl(url);
  if (!parts.ok) return parts;
  const source = await resolveSource(host.settings, parts.value, policyOf(wanted));
  return source.ok ? examineAt(host, source.value, wanted) : source;
}

/** `examineSource` for a source whose address is known. */
export async function examineAt(
  host: Pick<ProbeHost, 'settings' | 'postgres'>,
  source: Source,
  wanted: Wanted,
): Promise<Result<Examined, SourceFinding>> {
  const policy = policyOf(wanted);
  const { extensions } = await listExtensions(host.postgres);
  const creatable = new Set(extensions.flatMap(({ name, trusted }) => (trusted ? [name] : [])));
  const { offered } = await readProjectExtensions(host.settings, host.postgres);
  const made = new Set(await extensionsOfProject(host.postgres, wanted.project_id));
  // A project that moves here gets those of its own that this host has.
  if (policy.sameRoles) for (const { name } of offered) made.add(name);
  const read = await inSource(host.settings, source, { within: READ_WITHIN_MS }, async ({ session, tls }) => {
    const catalog = await readCatalog(session, wanted.publication);
    const requested = await readLeftAlone(session, wanted);
    const missing = catalog.extensions
      .filter(({ name, schema }) => !creatable.has(name) && !(made.has(name) && schema === MADE_IN))
      .map(({ name }) => name);
    const use = await readExtensionUse(session, missing, requested.leftAlone);
    const { leftAlone } =
      use.leftOut.length === 0
        ? requested
        : await readLeftAlone(session, { ...wanted, extensions: use.leftOut });
    const lost = catalog.tables.filter(
      (table) => isLeftAlone(leftAlone, table) && !isLeftAlone(requested.leftAlone, table),
    );
    const ofTables = lost.map((table) =>
      finding(
        'extension',
        `The table ${short(nameOf(table))} needs a view of an extension that is left out.`,
        {
          object: short(nameOf(table)),
        },
      ),
    );
    return {
      tls,
      catalog,
      leftAlone,
      unknown: requested.unknown,
      ofExtensions: [
        ...use.findings,
        ...ofTables,
        ...(policy.sameRoles && !source.isLocal ? versionFindings(catalog, offered) : []),
      ],
    };
  });
  if (!read.ok) return fail(read.failure);
  const { tls, catalog, leftAlone, unknown: notThere, ofExtensions } = read.value;
  catalog.tables = catalog.tables.filter((table) => !isLeftAlone(leftAlone, table));
  const { chosen, unknown } = chosenTables(catalog, wanted);
  catalog.hidden_sequences = catalog.hidden_sequences.filter((sequence) => !isLeftAlone(leftAlone, sequence));
  catalog.hidden_parents = catalog.hidden_parents.filter(
    (parent) =>
      !isLeftAlone(leftAlone, parent) &&
      (wanted.tables === null || chosen.some(({ oid }) => parent.partitions.includes(oid))),
  );
  if (policy.excludesAlwaysTriggers)
    for (const table of catalog.tables) table.has_key &&= !table.fires_always;
  const free = await freeBytes(host.settings.PGDATA_DIR);
  const total_bytes = numberOf(chosen.reduce((sum, { bytes }) => sum + numberOf(bytes), 0));
  const tables = fitting(chosen.map(toTable).slice(0, SOURCE_TABLES_MAX), ROOM.tables);
  const { host: name, port, database } = source;
  const isCopy = wanted.use === 'import';
  const findings = [
    ...serverFindings(catalog, wanted.publication === null, VERSION[wanted.use]),
    ...unknown,
    ...notThere,
    ...publicationFindings(catalog, wanted.publication),
    ...(wanted.tables === null ? unpublishedFindings(catalog, wanted.publication) : []),
    ...sizeFindings(total_bytes, wanted.room_bytes, free),
    ...ofExtensions,
    ...rightsFindings(catalog, chosen, wanted.publication === null),
    ...(policy.reportsHidden ? hiddenFindings(catalog) : []),
    ...chosen.filter(({ is_unlogged }) => !isCopy || !is_unlogged).flatMap(limitOf),
  ].filter((found) => !isCopy || mattersForCopy(found));
  return ok({
    source: { ...source, tls },
    tables: chosen.map(({ schema, name: table }) => [schema, table]),
    published: publishedOf(chosen),
    leftAlone,
    probe: {
      source: {
        host: name,
        port,
        database,
        version: short(catalog.version),
        tls,
        total_bytes,
        tables,
        has_more: chosen.length > tables.length,
        free_slots: numberOf(catalog.free_slots),
        wal_keep_bytes: catalog.wal_keep_bytes === null ? null : numberOf(catalog.wal_keep_bytes),
      },
      findings: firstOf(findings),
    },
  });
}

/** The schema of the extensions that a project is created with. */
const MADE_IN = 'public';

/** Another version has other objects, and none is updated in place. */
const versionFindings = (
  { extensions }: Pick<SourceCatalog, 'extensions'>,
  offered: readonly { name: string; version: string }[],
): SourceFinding[] =>
  extensions.flatMap(({ name, version }) => {
    const here = offered.find((each) => each.name === name);
    if (!here || here.version === version) return [];
    return finding(
      'extension',
      `The project has the extension ${short(name)} in version ${short(version)}, and the other host has ${here.version}. Install the same version there.`,
      { object: short(name) },
    );
  });

/** Facts that a copy needs no rights and no settings for. */
const FOLLOWING_ONLY = new Set<SourceFinding['problem']>([
  'wal_level',
  'replication_slots',
  'wal_senders',
  'wal_keep_size',
  'no_key',
  'standby',
]);

/** Rights on an object, with a statement that grants them, are those to read it; others are to replicate and publish. */
const mattersForCopy = ({ problem, object, statement }: SourceFinding): boolean =>
  !FOLLOWING_ONLY.has(problem) && (problem !== 'rights' || (object !== null && statement !== null));

type Named = Pick<TableRow, 'schema' | 'name'>;
const schemaOf = ({ schema }: Named) => sqlName(schema);
const nameOf = ({ schema, name }: Named) => `${sqlName(schema)}.${sqlName(name)}`;

/** The tables that would be copied. A partitioned table stands for its partitions. */
function chosenTables(catalog: SourceCatalog, { tables: names, publication }: Wanted) {
  const candidates = catalog.tables.filter((table) => publication === null || isPublished(catalog, table));
  if (names === null) return { chosen: candidates, unknown: [] };
  const known = new Map<string, Set<TableRow>>();
  for (const table of candidates)
    for (const spelling of [
      ...spellings(table.schema, table.name),
      ...spellings(table.root_schema, table.root_name),
    ])
      known.set(spelling, (known.get(spelling) ?? new Set()).add(table));
  const chosen = new Set(names.flatMap((name) => [...(known.get(name) ?? [])]));
  const where = publication === null ? '' : ' in the publication';
  const unknown = names.flatMap((name, at) =>
    unless(known.has(name), 'tables', `The source has no table ${short(name)}${where}.`, {
      path: `tables.${at}`,
    }),
  );
  return { chosen: candidates.filter((table) => chosen.has(table)), unknown };
}

function followsOf(table: TableRow): SourceTable['follows'] {
  const limit = limitOf(table)[0]?.problem;
  return limit === 'not_followed' ? 'nothing' : limit === 'no_key' ? 'inserts' : 'all';
}

const publishedOf = (tables: readonly TableRow[]): PublishedTable[] =>
  tables.flatMap((table) => {
    const follows = followsOf(table);
    return follows === 'nothing' ? [] : [{ schema: table.schema, name: table.name, follows }];
  });

function toTable(table: TableRow): SourceTable {
  const { schema, name, rows, bytes } = table;
  const follows = followsOf(table);
  return { schema: short(schema), table: short(name), rows: numberOf(rows), bytes: numberOf(bytes), follows };
}

const VERSION = { follow: 15, import: 13, max: 18 };

/** A finding, unless there is none. */
const unless = (isFine: boolean, ...about: Parameters<typeof finding>): SourceFinding[] =>
  isFine ? [] : [finding(...about)];

function serverFindings(catalog: SourceCatalog, makesPublication: boolean, oldest: number): SourceFinding[] {
  const { major, version, wal_level, free_slots, free_senders, wal_keep_bytes, large_objects } = catalog;
  return [
    ...unless(
      major >= oldest && major <= VERSION.max,
      'version',
      `The source is PostgreSQL ${short(version)}. Versions ${oldest} to ${VERSION.max} are accepted.`,
    ),
    ...unless(
      !(catalog.is_standby && makesPublication),
      'standby',
      'The source is a standby. Use the primary server.',
    ),
    ...unless(
      catalog.encoding !== 'SQL_ASCII',
      'encoding',
      'The source has the encoding SQL_ASCII, whose text may be no valid UTF-8.',
    ),
    ...unless(
      wal_level === 'logical',
      'wal_level',
      `wal_level is ${short(wal_level)} at the source, and has to be logical.`,
      { statement: 'ALTER SYSTEM SET wal_level = logical; -- then restart the server' },
    ),
    ...unless(free_slots > 0, 'replication_slots', 'The source has no free replication slot.', {
      statement: 'ALTER SYSTEM SET max_replication_slots = 20; -- then restart the server',
    }),
    ...unless(free_senders > 0, 'wal_senders', 'The source has no free WAL sender.', {
      statement: 'ALTER SYSTEM SET max_wal_senders = 20; -- then restart the server',
    }),
    ...unless(
      wal_keep_bytes !== null,
      'wal_keep_size',
      'The slot keeps WAL without a bound while this host is away, which can fill the disk of the source.',
      {
        severity: 'warning',
        statement: "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'; SELECT pg_reload_conf();",
      },
    ),
    ...unless(
      !(large_objects > 0),
      'large_objects',
      `The source has ${large_objects} large objects, which are not copied. Move them into columns of type bytea.`,
    ),
  ];
}

function publicationFindings(
  { publication, partial, published }: SourceCatalog,
  name: string | null,
): SourceFinding[] {
  if (name === null) return [];
  const of = (isFine: boolean, message: string, statement: string | null = null) =>
    unless(isFine, 'publication', message, { path: 'publication', statement });
  if (!publication) return of(false, 'The source has no publication of this name.');
  const left = (['insert', 'update', 'delete', 'truncate'] as const).filter((kind) => !publication[kind]);
  return [
    ...of(published.size > 0, 'The publication has no table.'),
    // libpq escapes it in a form that the replication protocol does not know.
    ...of(
      !name.includes('\\'),
      'PostgreSQL cannot stream a publication with a backslash in its name. Rename it.',
      `ALTER PUBLICATION ${identifier(name)} RENAME TO ${identifier(name.replaceAll('\\', '_'))}`,
    ),
    ...of(
      left.length === 0,
      `The publication leaves out: ${left.join(', ')}.`,
      `ALTER PUBLICATION ${identifier(name)} SET (publish = 'insert, update, delete, truncate')`,
    ),
    ...of(
      partial === 0,
      `The publication has only some rows or columns of ${partial} tables. Publish them whole.`,
    ),
  ];
}

/** Tables of the source that are made here without their rows. */
function unpublishedFindings(catalog: SourceCatalog, publication: string | null): SourceFinding[] {
  const left = catalog.tables.filter((table) => table.kind === 'r' && !isPublished(catalog, table));
  if (publication === null || catalog.publication === null || left.length === 0) return [];
  const names = left.map(nameOf);
  return [
    finding(
      'not_followed',
      `The publication leaves out tables, which are empty here: ${listNames(names)}. Add them to it, or name the tables that are meant.`,
      {
        severity: 'warning',
        path: 'publication',
        statement: `ALTER PUBLICATION ${identifier(publication)} ADD TABLE ${names.slice(0, STATED_MAX).join(', ')}`,
      },
    ),
  ];
}

/** Tables in one statement. */
const STATED_MAX = 20;
const GIB = 2 ** 30;
const inGib = (bytes: number) => `${(bytes / GIB).toFixed(2)} GiB`;

function sizeFindings(total: number, room: number, free: number): SourceFinding[] {
  const message =
    total > room
      ? `The tables take ${inGib(total)}, and the storage quota has ${inGib(room)} left. Raise the quota, or choose tables.`
      : `The database host has no room for tables of ${inGib(total)}. Contact its operator.`;
  return unless(total <= Math.min(room, free), 'size', message, { path: 'tables' });
}

function rightsFindings(
  { user, database, may_replicate, may_create, hidden_sequences, hidden_parents }: SourceCatalog,
  tables: readonly TableRow[],
  makesPublication: boolean,
): SourceFinding[] {
  const login = identifier(user);
  const hidden = (named: Named, kind = '') => {
    const object = short(nameOf(named));
    return finding(
      'rights',
      `The login has no right SELECT on ${object}. Grant it, or leave it alone with exclude_schemas or exclude_tables.`,
      {
        object,
        statement: `GRANT USAGE ON SCHEMA ${schemaOf(named)} TO ${login}; GRANT SELECT ON ${kind}${nameOf(named)} TO ${login}`,
      },
    );
  };
  return [
    ...unless(may_replicate, 'rights', 'The login has no right to replicate.', {
      statement: `ALTER ROLE ${login} REPLICATION; -- on Amazon RDS: GRANT rds_replication TO ${login}`,
    }),
    ...unless(
      may_create || !makesPublication,
      'rights',
      'The login may not create a publication in the database. Grant it, or name a publication that exists.',
      { statement: `GRANT CREATE ON DATABASE ${identifier(database)} TO ${login}` },
    ),
    ...tables.flatMap((table) => {
      const name = nameOf(table);
      if (table.kind === 'f') return [];
      if (!table.readable) return hidden(table);
      if (table.hides_rows)
        return finding('rights', `Row-level security hides rows of ${short(name)} from the login.`, {
          object: short(name),
          statement: `ALTER ROLE ${login} BYPASSRLS`,
        });
      return unless(
        table.owned || !makesPublication,
        'rights',
        `Only the owner of ${short(name)} can publish it. Use the owner's login, or name a publication that exists.`,
        { object: short(name) },
      );
    }),
    ...hidden_parents.map((parent) => hidden(parent)),
    ...hidden_sequences.map((sequence) => hidden(sequence, 'SEQUENCE ')),
  ];
}

/** A cut-over has to see the sessions that write. */
const hiddenFindings = ({ user, hidden_logins }: SourceCatalog): SourceFinding[] =>
  unless(
    hidden_logins.length === 0,
    'rights',
    `The login cannot see the sessions of other logins, whose writes a cut-over would lose: ${listNames(hidden_logins)}.`,
    { statement: `GRANT pg_read_all_stats, pg_signal_backend TO ${identifier(user)}` },
  );

/** Changes of a table that do not follow; none for most. */
function limitOf(table: TableRow): SourceFinding[] {
  const name = nameOf(table);
  const of = (problem: 'no_key' | 'not_followed', message: string, statement: string | null = null) => [
    finding(problem, message, { severity: 'warning', path: 'tables', object: short(name), statement }),
  ];
  if (table.kind === 'f')
    return of('not_followed', `${short(name)} is a foreign table, which has no rows here.`);
  if (table.is_unlogged)
    return of(
      'not_followed',
      `${short(name)} is unlogged, so its rows are not copied.`,
      `ALTER TABLE ${name} SET LOGGED`,
    );
  if (table.has_key) return [];
  return of(
    'no_key',
    `${short(name)} has no primary key, so only new rows follow: updates and deletions do not.`,
    `ALTER TABLE ${name} REPLICA IDENTITY FULL`,
  );
}

/** Bytes that each list has in a message of the link: the source can have names of any length. */
const ROOM = { tables: 393_216, findings: 262_144 };

/** Errors come first. */
function firstOf(findings: SourceFinding[]): SourceFinding[] {
  const sorted = [
    ...findings.filter(({ severity }) => severity === 'error'),
    ...findings.filter(({ severity }) => severity === 'warning'),
  ];
  const listed = fitting(sorted, ROOM.findings);
  const next = sorted[listed.length];
  if (!next) return listed;
  const message = `${sorted.length - listed.length} more findings are not listed.`;
  return [...listed, finding('tables', message, { severity: next.severity, path: 'tables' })];
}
