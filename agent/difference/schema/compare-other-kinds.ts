import { OTHER_OBJECTS } from './other-kinds.ts';
import type { CatalogQuery, SchemaChange } from './schema-record.ts';

interface OtherObject {
  kind: string;
  identity: string;
  definition: string;
  /** Statements that make it and remove it. */
  set: string | null;
  reset: string | null;
}

type OtherObjects = ReadonlyMap<string, OtherObject>;

export async function readOtherKinds(query: CatalogQuery): Promise<OtherObjects> {
  const { rows } = await query(OTHER_OBJECTS);
  const objects = rows as unknown as OtherObject[];
  return new Map(objects.map((object) => [`${object.kind} ${object.identity}`, object]));
}

interface OtherDifference {
  changes: SchemaChange[];
  /** Statements that run before the library's, which may remove what these objects depend on. */
  before: string[];
  after: string[];
  notModelled: string[];
}

export function compareOtherKinds(here: OtherObjects, there: OtherObjects): OtherDifference {
  const difference: OtherDifference = { changes: [], before: [], after: [], notModelled: [] };
  for (const key of [...new Set([...there.keys(), ...here.keys()])].sort()) {
    const [to, from] = [here.get(key), there.get(key)];
    const { kind, identity } = to ?? (from as OtherObject);
    if (to?.definition === from?.definition) continue;
    const change = from === undefined ? 'added' : to === undefined ? 'dropped' : 'changed';
    difference.changes.push({ kind, identity, change });
    if ((to && to.set === null) || (from && from.reset === null)) {
      difference.notModelled.push(`No statement is made for the ${kind} ${identity} (${change}).`);
      continue;
    }
    if (from?.reset) difference.before.push(from.reset);
    if (to?.set) difference.after.push(to.set);
  }
  return difference;
}
