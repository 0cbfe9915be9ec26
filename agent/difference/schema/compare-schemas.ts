import { createHash } from 'node:crypto';
import { groupName } from '../../../shared/branch/login.ts';
import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import { exportSnapshot } from '../../postgres/connect.ts';
import { databasePrint } from '../../postgres/database-print.ts';
import { type Right, readRights } from '../../privileges/object-rights.ts';
import { HostError } from '../../process/host-error.ts';
import type { Side, Sides } from '../sides.ts';
import { type ComparisonLogin, dumpAsLogin, readAsLogin, withComparisonLogin } from './comparison-login.ts';
import { DumpCache } from './dump-cache.ts';
import { factsNeeded, identityOf, kindOf, planStatements, type SchemaPlan } from './plan-statements.ts';
import {
  type Limits,
  type Proof,
  type ProofHost,
  proveStatements,
  type Unproven,
} from './prove-statements.ts';
import { type Rights, rightStatements } from './rights-statements.ts';
import { type EntryPair, isEqual, pairEntries, type SchemaEntry, schemaEntries } from './schema-entries.ts';
import { readFacts, type SchemaFacts } from './schema-facts.ts';

/** A comparison takes no longer. Milliseconds. */
const WITHIN_MS = 20_000;
/** Reading one side. Milliseconds. */
const READ_WITHIN_MS = 7_000;
/** Bytes that each list has in a message of the link, next to the rows or the tables of a rehearsal. */
const ROOM = { changes: 196_608, statements: 262_144, not_modelled: 65_536 };
/** Characters of a definition that is shown. */
const DEFINITION_MAX = 2_000;

/** A schema as it was at one time. */
interface ReadSchema {
  entries: readonly SchemaEntry[];
  facts: (oids: readonly number[]) => Promise<SchemaFacts>;
  rights: () => Promise<Rights>;
}

/**
 * The objects that differ, and the statements that bring `before` to the schema of `after`, proven in a scratch database.
 * @param signal aborted when the comparison has taken too long
 * @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED for a schema that is too large
 */
export async function compareSchemas(
  host: ProofHost,
  { before, after }: Sides,
  signal: AbortSignal,
): Promise<SchemaDifference> {
  const limits = limitsOf(signal);
  const projectId = await projectOf(host, after);
  return withComparisonLogin(host, projectId, [before.database, after.database], async (login) =>
    prove(host, login, await planOf(host, login, { before, after }, signal), limits),
  );
}

const planOf = (
  host: ProofHost,
  login: ComparisonLogin,
  { before, after }: Sides,
  signal: AbortSignal,
): Promise<Compared | null> =>
  inSchema(host, login, before, signal, (old) =>
    inSchema(host, login, after, signal, (present) => planBetween(old, present)),
  );

/**
 * SHA-256 of a schema, hexadecimal. Two databases have the same one if `compareSchemas` finds no difference.
 * @throws HostError as `compareSchemas`
 */
export const digestSchema = (
  host: ProofHost,
  projectId: string,
  side: Side,
  signal: AbortSignal,
): Promise<string> =>
  withComparisonLogin(host, projectId, [side.database], (login) => digestAsLogin(host, login, side, signal));

/** Digests a schema as `digestSchema` does, with a login that may connect to the database. */
export const digestAsLogin = (
  host: ProofHost,
  login: ComparisonLogin,
  side: Side,
  signal: AbortSignal,
): Promise<string> => inSchema(host, login, side, signal, async ({ entries }) => digestOf(entries));

/**
 * The objects that differ between two databases of a project, without statements.
 * @throws HostError as `compareSchemas`
 */
export const changedObjects = (
  host: ProofHost,
  projectId: string,
  { before, after }: Sides,
  signal: AbortSignal,
): Promise<SchemaDifference['changes']> =>
  withComparisonLogin(host, projectId, [before.database, after.database], async (login) => {
    const found = await planOf(host, login, { before, after }, signal);
    return fitting(found?.plan.changes ?? [], ROOM.changes);
  });

function digestOf(entries: readonly SchemaEntry[]): string {
  const texts = entries.map(({ kind, schema, tag, definition, accessMethod }) =>
    JSON.stringify([kind, schema, tag, definition, accessMethod]),
  );
  return createHash('sha256').update(texts.toSorted().join('\n')).digest('hex');
}

/** The schema as text, to be compared with a later one. @throws HostError as `compareSchemas` */
export async function storeSchemaOf(host: ProofHost, side: Side, signal: AbortSignal): Promise<string> {
  const projectId = await projectOf(host, side);
  return withComparisonLogin(host, projectId, [side.database], (login) =>
    inSchema(host, login, side, signal, async ({ entries, facts, rights }) => {
      const { relations, types, sequences, users } = await facts(
        entries.flatMap(({ oid }) => (oid > 0 ? [oid] : [])),
      );
      const stored: StoredSchema = {
        entries: entries.map(({ part: _, ...entry }) => entry),
        facts: { relations: [...relations], types: [...types], sequences: [...sequences], users },
        rights: [...(await rights())],
      };
      return JSON.stringify(stored);
    }),
  );
}

interface StoredSchema {
  entries: Omit<SchemaEntry, 'part'>[];
  facts: {
    [K in keyof SchemaFacts]: SchemaFacts[K] extends Map<number, infer V> ? [number, V][] : SchemaFacts[K];
  };
  rights: [string, Right][];
}

function restored(text: string): ReadSchema {
  const { entries, facts, rights } = JSON.parse(text) as StoredSchema;
  const { relations, types, sequences, users } = facts;
  const read = { relations: new Map(relations), types: new Map(types), sequences: new Map(sequences), users };
  return { entries: schemaEntries(entries), facts: async () => read, rights: async () => new Map(rights) };
}

/** As `compareSchemas`, with a schema that was stored. @throws HostError as `compareSchemas` */
export async function compareWithStored(
  host: ProofHost,
  side: Side,
  stored: string,
  signal: AbortSignal,
): Promise<SchemaDifference> {
  const limits = limitsOf(signal);
  const projectId = await projectOf(host, side);
  return withComparisonLogin(host, projectId, [side.database], async (login) => {
    const found = await inSchema(host, login, side, signal, (present) =>
      planBetween(restored(stored), present),
    );
    return prove(host, login, found, limits);
  });
}

function limitsOf(signal: AbortSignal): Limits {
  const until = performance.now() + WITHIN_MS;
  return { signal, left: () => until - performance.now() };
}

async function projectOf({ postgres }: ProofHost, { branch_id, project_id }: Side): Promise<string> {
  if (project_id !== undefined) return project_id;
  const { rows } = await postgres.query<{ project_id: string }>(
    'SELECT project_id FROM branch WHERE branch_id = $1',
    [branch_id],
  );
  const [found] = rows;
  if (!found) throw new HostError('SOURCE_MISSING', 'the branch was dropped meanwhile');
  return found.project_id;
}

const DUMPS = new DumpCache();

/** Runs `action` with the schema as it is in one snapshot, which the dump and the session share. */
function inSchema<T>(
  host: ProofHost,
  login: ComparisonLogin,
  { database }: Side,
  signal: AbortSignal,
  action: (schema: ReadSchema) => Promise<T>,
): Promise<T> {
  const owner = groupName(login.project_id, 'owner');
  return readAsLogin(host, login, database, WITHIN_MS, async (session) => {
    const snapshot = await exportSnapshot(session);
    const archive = await DUMPS.get(login.project_id, await databasePrint(session, 'schema'), () =>
      dumpAsLogin(login, database, { within: READ_WITHIN_MS, signal, isWhole: true, snapshot }),
    );
    return action({
      entries: schemaEntries(archive),
      facts: (oids) => readFacts(session, oids),
      rights: () => readRights(session, owner),
    });
  });
}

/** What differs, with everything that a proof needs: it runs when the sessions of both sides have ended. */
interface Compared {
  before: readonly SchemaEntry[];
  after: readonly SchemaEntry[];
  plan: SchemaPlan;
}

async function planBetween(before: ReadSchema, after: ReadSchema): Promise<Compared | null> {
  const pairs = pairEntries(before.entries, after.entries);
  if (pairs.every(isEqual)) return null;
  const plan = planStatements(
    { entries: before.entries, facts: await before.facts(factsNeeded(pairs, 'before')) },
    { entries: after.entries, facts: await after.facts(factsNeeded(pairs, 'after')) },
  );
  plan.statements.push(...(await rightsOf(plan, before, after)));
  return { before: before.entries, after: after.entries, plan };
}

async function prove(
  host: ProofHost,
  login: ComparisonLogin,
  found: Compared | null,
  limits: Limits,
): Promise<SchemaDifference> {
  if (found === null) return EQUAL;
  return bounded(differenceOf(found.plan, await proveStatements(host, login, found, limits)));
}

/** The schemas do not differ. */
export const EQUAL: SchemaDifference = {
  changes: [],
  statements: [],
  not_modelled: [],
  schema_proven: true,
  unproven_reason: null,
};

/** Objects that are made again begin with the default privileges. */
async function rightsOf(
  plan: SchemaPlan,
  before: ReadSchema,
  after: ReadSchema,
): Promise<SchemaPlan['statements']> {
  const made = new Set(
    plan.statements.flatMap(({ act, of }) => (act === 'make' && of?.drop ? [droppedName(of.drop)] : [])),
  );
  const texts = rightStatements(await before.rights(), await after.rights(), made);
  return texts.map((text) => ({ text, isProven: true, of: null, act: 'alter' }));
}

/** `DROP FUNCTION public.f(x integer);` names the object as the catalogs do. */
const droppedName = (drop: string) =>
  drop.replace(/^DROP (?:MATERIALIZED VIEW|FOREIGN TABLE|[A-Z]+) /, '').replace(/;\s*$/, '');

function differenceOf(plan: SchemaPlan, proof: Proof | Unproven): SchemaDifference {
  const { changes } = plan;
  const texts = (statements: SchemaPlan['statements']) =>
    statements.map(({ text }) => text.trim().replace(/;$/, ''));
  if (typeof proof === 'string')
    return {
      changes,
      statements: texts(plan.statements),
      not_modelled: [],
      schema_proven: false,
      unproven_reason: proof,
    };
  const isProven = proof.left.length === 0;
  return {
    changes,
    statements: texts(proof.statements),
    not_modelled: proof.left.map(notModelled),
    schema_proven: isProven,
    unproven_reason: isProven ? null : 'not_modelled',
  };
}

const shown = (entry: SchemaEntry | null) =>
  entry === null ? 'nothing' : entry.definition.trim().slice(0, DEFINITION_MAX) || entry.tag;

/** With both definitions: the statements leave the first one, and the branch has the second one. */
function notModelled({ before, after }: EntryPair): string {
  const entry = after ?? before;
  const name = entry ? `${kindOf(entry)} ${identityOf(entry)}` : '';
  return `No statement brings the ${name} to that of the branch. It is: ${shown(before)}\nThe branch has: ${shown(after)}`;
}

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
export function bounded(difference: SchemaDifference): SchemaDifference {
  const { changes, statements, not_modelled } = difference;
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
    ...difference,
    changes: listed,
    statements: isLong ? [] : statements,
    not_modelled: unnoted === 0 ? noted : [...noted, `${unnoted} more such differences are not listed.`],
  };
}
