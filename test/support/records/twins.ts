/** A row as D1 has it, with its table. */
export interface StoredRow {
  table: string;
  columns: Record<string, string | number | null>;
}

/** Tables without anything of a tenant, and the outbox, which triggers fill. */
const OF_NOBODY = [
  'hosts',
  'drains',
  'host_authority',
  'named_networks',
  'oauth_clients',
  'audit_exports',
  'event_outbox',
];
/** Columns about a host or about a key of the service, which all tenants share. */
const SHARED = /host_id$|^key_id$|^client_id$|^external_id$|^request_id$/;

/** What marks each twin: text that no other row has. */
export const TWINS = { earlier: 'aaaaaaaa', later: 'bbbbbbbb', sibling: 'cccccccc' } as const;
export type Twin = keyof typeof TWINS;

const UUID = /^[0-9a-f]{8}(?=-)/;
/** The id that a twin has in place of this one. */
export const twinOf = (id: string, twin: Twin): string =>
  UUID.test(id) ? id.replace(UUID, TWINS[twin]) : `${id}-${TWINS[twin]}`;

const known = new WeakMap<D1Database, string[]>();

async function tablesOf(binding: D1Database): Promise<string[]> {
  const read = known.get(binding);
  if (read) return read;
  const { results } = await binding
    .prepare("select name from sqlite_master where type = 'table' and name not like '\\_%' escape '\\'")
    .all<{ name: string }>();
  const tables = results.map(({ name }) => name).filter((name) => !/^(?:sqlite_|d1_)/.test(name));
  known.set(binding, tables);
  return tables;
}

/** Every row, in the order in which it was inserted. */
export async function readAll(binding: D1Database): Promise<StoredRow[]> {
  const tables = await tablesOf(binding);
  const found = await binding.batch<StoredRow['columns']>(
    tables.map((table) => binding.prepare(`select * from "${table}" order by rowid`)),
  );
  return found.flatMap(({ results }, n) => results.map((columns) => ({ table: tables[n] ?? '', columns })));
}

/** Adds the rows. Triggers leave no events of it. */
export const insertRows = (binding: D1Database, rows: readonly StoredRow[]) => write(binding, [], rows);

/** Replaces everything by these rows. Triggers leave no events of it. */
export const replaceAll = async (binding: D1Database, rows: readonly StoredRow[]) =>
  write(binding, await tablesOf(binding), rows);

async function write(
  binding: D1Database,
  emptied: readonly string[],
  rows: readonly StoredRow[],
): Promise<void> {
  const byTable = Map.groupBy(rows, ({ table }) => table);
  await binding.batch([
    binding.prepare('pragma defer_foreign_keys = on'),
    ...emptied.map((table) => binding.prepare(`delete from "${table}"`)),
    ...[...byTable].map(([table, ofTable]) => {
      const names = Object.keys(ofTable[0]?.columns ?? {});
      const values = names.map((_, n) => `value ->> ${n}`);
      return binding
        .prepare(
          `insert into "${table}" (${names.map((name) => `"${name}"`)}) select ${values} from json_each(?)`,
        )
        .bind(JSON.stringify(ofTable.map(({ columns }) => Object.values(columns))));
    }),
    binding.prepare('delete from event_outbox'),
  ]);
}

/** Columns that are unique in the whole service, and a twin's value of them. */
const UNIQUE: Record<string, (value: string, mark: string) => string> = {
  'oauth_grants.code_hash': (value, mark) => value + mark,
  'projects.app_key': (value, mark) => value + mark,
  'project_branches.database_name': (value, mark) => value + mark,
  'accounts.email': (value, mark) => value.replace('@', `@${mark}.`),
  'provider_domains.domain': (value, mark) => `${mark}.${value}`,
  'identity_providers.scim_token_hash': (value, mark) => value + mark,
};

const idColumn = (name: string) =>
  (name === 'id' || name === 'gid' || name.endsWith('_id')) && !SHARED.test(name);

/**
 * The same rows of someone else: other ids in every place, everything else alike.
 * @param twin `earlier` and `later` belong to other tenants, and all their times are a second earlier or later;
 *   `sibling` is another project and another identity provider of the same tenant
 */
export function twinRows(rows: readonly StoredRow[], twin: Twin): StoredRow[] {
  const mark = TWINS[twin];
  const shift = { earlier: -1000, later: 1000, sibling: 0 }[twin];
  const isOwn = ({ table }: StoredRow) => !OF_NOBODY.includes(table);
  const ids = new Set<unknown>();
  for (const { columns } of rows.filter(isOwn))
    for (const [name, value] of Object.entries(columns)) if (idColumn(name)) ids.add(value);
  if (twin === 'sibling') {
    const people = new Set(
      rows.filter(({ table }) => table === 'provider_people').map(({ columns }) => columns.id),
    );
    for (const { table, columns } of rows) {
      ids.delete(columns.tenant_id ?? columns.idp_tenant_id);
      const isOfAccount = table === 'sessions' && columns.account_id !== null;
      if (['accounts', 'organizations', 'owner_invitations', 'invitations'].includes(table) || isOfAccount)
        ids.delete(columns.id);
      if (table === 'users' && !people.has(columns.gid ?? null))
        for (const id of [columns.id, columns.gid]) ids.delete(id);
    }
  }
  ids.delete(null);
  const swap = (value: unknown): unknown => {
    if (typeof value === 'string') return ids.has(value) ? twinOf(value, twin) : value;
    if (Array.isArray(value)) return value.map(swap);
    if (value === null || typeof value !== 'object') return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, swap(inner)]));
  };
  const swapText = (text: string) =>
    /^[[{]/.test(text) ? JSON.stringify(swap(JSON.parse(text))) : String(swap(text));
  return rows.filter(isOwn).flatMap(({ table, columns }) => {
    // A user has a key once.
    if (table === 'idempotency_keys' && twin === 'sibling') return [];
    let differs = false;
    const swapped = Object.entries(columns).map(([name, value]) => {
      if (typeof value === 'number') return [name, name.endsWith('_at') ? value + shift : value];
      if (value === null || SHARED.test(name)) return [name, value];
      const next = swapText(value);
      differs ||= next !== value;
      return [name, next];
    });
    if (!differs) return [];
    const row = Object.fromEntries(swapped) as StoredRow['columns'];
    for (const [path, other] of Object.entries(UNIQUE)) {
      const [of, name = ''] = path.split('.');
      if (of === table && typeof row[name] === 'string') row[name] = other(row[name], mark);
    }
    // One tenant has an issuer once.
    if (table === 'identity_providers' && twin === 'sibling') row.issuer = `${row.issuer}/${mark}`;
    return [{ table, columns: row }];
  });
}

/** Whether a row belongs to a twin. */
export const isOfTwin = (row: StoredRow): boolean => {
  const text = JSON.stringify(row);
  return Object.values(TWINS).some((mark) => text.includes(mark));
};
