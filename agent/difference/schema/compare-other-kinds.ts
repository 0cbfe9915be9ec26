import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import type { CatalogQuery } from './comparison-messages.ts';
import { OTHER_OBJECTS } from './other-kinds.ts';

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
