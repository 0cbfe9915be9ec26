import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import { AS_VALUES, type Session } from '../../postgres/connect.ts';
import type { RowsHost } from '../../rows/branch-session.ts';
import { inBranch } from '../../rows/branch-session.ts';
import type { Side, Sides } from '../sides.ts';
import { type CatalogQuery, type Outcome, runInThread, type Task, tooLarge } from './comparison-thread.ts';

/** Bound of the objects on each side. */
const OBJECTS_MAX = 50_000;
const CATALOGS = [
  'pg_class',
  'pg_attribute',
  'pg_proc',
  'pg_type',
  'pg_constraint',
  'pg_trigger',
  'pg_policy',
];
/** Bytes that each list has in a message of the link, next to the rows or the tables of a rehearsal. */
const ROOM = { changes: 196_608, statements: 262_144, not_modelled: 65_536 };

/**
 * The objects that differ, and the statements that bring `before` to the schema of `after`. Each side is read
 * in one snapshot of its read-only login.
 * @param signal aborted when the comparison has taken too long
 * @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED for a schema that is too
 *   large
 */
export const compareSchemas = async (
  host: RowsHost,
  sides: Sides,
  signal: AbortSignal,
): Promise<SchemaDifference> =>
  bounded(
    await inCatalog(host, sides.before, (before) =>
      inCatalog(host, sides.after, (after) => runInThread('session', { before, after }, signal)),
    ),
  );

/** The schema as text, to be compared with a later one. @throws HostError as `compareSchemas` */
export async function storeSchemaOf(host: RowsHost, side: Side, signal: AbortSignal): Promise<string> {
  const { stored } = await readAfter(host, side, null, signal);
  return stored ?? '';
}

/** As `compareSchemas`, with a schema that was stored. @throws HostError as `compareSchemas` */
export const compareWithStored = async (
  host: RowsHost,
  side: Side,
  stored: string,
  signal: AbortSignal,
): Promise<SchemaDifference> => bounded(await readAfter(host, side, { stored }, signal));

const readAfter = (host: RowsHost, side: Side, before: Task['before'], signal: AbortSignal) =>
  inCatalog(host, side, (after) => runInThread(before, { after }, signal));

const inCatalog = (host: RowsHost, side: Side, action: (query: CatalogQuery) => Promise<Outcome>) =>
  inBranch(host, side, 'query', async (session) => {
    const query = catalogQuery(session);
    if ((await countObjects(query)) > OBJECTS_MAX) throw tooLarge();
    return action(query);
  });

/** The session leaves every value as text; the library expects the default types. */
export const catalogQuery =
  (session: Session): CatalogQuery =>
  (text, values) =>
    session.query<Record<string, unknown>>({ text, values: values ?? [], types: AS_VALUES });

async function countObjects(query: CatalogQuery): Promise<number> {
  // Stops counting at the limit, so that a huge catalog costs no more.
  const counts = CATALOGS.map(
    (catalog) =>
      `(SELECT count(*) FROM (SELECT FROM pg_catalog.${catalog} OFFSET 0 LIMIT ${OBJECTS_MAX + 1}) AS counted)`,
  );
  const { rows } = await query(`SELECT (${counts.join(' + ')})::float8 AS objects`);
  return Number(rows[0]?.objects);
}

const NOTHING: SchemaDifference = { changes: [], statements: [], not_modelled: [] };

/** The first ones that fit, as JSON. */
export function fitting<T>(list: readonly T[], room: number): T[] {
  let bytes = 0;
  const end = list.findIndex((item) => {
    bytes += Buffer.byteLength(JSON.stringify(item)) + 1;
    return bytes > room;
  });
  return end === -1 ? [...list] : list.slice(0, end);
}

/** A part of a plan would look like a plan, so one that is too long is not returned at all. */
export function bounded({ difference }: Pick<Outcome, 'difference'>): SchemaDifference {
  const { changes, statements, not_modelled } = difference ?? NOTHING;
  const listed = fitting(changes, ROOM.changes);
  const isLong = fitting(statements, ROOM.statements).length < statements.length;
  const unlisted = changes.length - listed.length;
  const notes = [
    ...(isLong ? ['The statements are not listed, because they are too long together.'] : []),
    ...(unlisted > 0 ? [`${unlisted} more changes are not listed.`] : []),
    ...not_modelled,
  ];
  const noted = fitting(notes, ROOM.not_modelled);
  const unnoted = notes.length - noted.length;
  return {
    changes: listed,
    statements: isLong ? [] : statements,
    not_modelled: unnoted === 0 ? noted : [...noted, `${unnoted} more such differences are not listed.`],
  };
}
