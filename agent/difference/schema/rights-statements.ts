import { identifier } from '../../postgres/connect.ts';
import { type Right, rightStatement } from '../../privileges/object-rights.ts';

/** The object kinds of default privileges. */
const DEFAULTS: Record<string, string> = {
  TABLE: 'DEFAULT TABLES',
  SEQUENCE: 'DEFAULT SEQUENCES',
  ROUTINE: 'DEFAULT FUNCTIONS',
  SCHEMA: 'DEFAULT SCHEMAS',
};

export type Rights = ReadonlyMap<string, Right>;

const keyOf = (right: Right) => JSON.stringify(Object.values(right));
const objectOf = ({ kind, object }: Right) => JSON.stringify([kind, object]);

/**
 * Statements that bring the rights of one side to those of the other.
 * @param made names of objects that other statements make: they begin with the default privileges
 */
export function rightStatements(before: Rights, after: Rights, made: ReadonlySet<string>): string[] {
  const known = new Set([...before.values()].map(objectOf));
  const isNew = (right: Right) => !known.has(objectOf(right)) || made.has(right.object);
  const kept = new Map([...before].filter(([, right]) => !made.has(right.object)));
  const fresh = new Map(
    [...after.values()]
      .filter((right) => right.kind in DEFAULTS && isNew(right))
      .map((right) => [objectOf(right), right] as const),
  );
  const defaults = [...before.values()].filter(({ kind }) => kind.startsWith('DEFAULT '));
  for (const right of fresh.values())
    for (const given of defaults) {
      if (given.kind !== DEFAULTS[right.kind] || !appliesTo(given, right)) continue;
      const first = { ...given, kind: right.kind, object: right.object };
      kept.set(keyOf(first), first);
    }
  const wanted = new Set([...after.values()].map(objectOf));
  // The rights of an object that is dropped go with it.
  const revoked = [...kept].filter(
    ([key, right]) => !after.has(key) && (wanted.has(objectOf(right)) || right.kind.startsWith('DEFAULT ')),
  );
  const granted = [...after].filter(([key]) => !kept.has(key));
  return [
    ...revoked.map(([, right]) => rightStatement('REVOKE', right)),
    ...granted.map(([, right]) => rightStatement('GRANT', right)),
  ];
}

/** Default privileges of a schema apply besides those of all schemas. */
const appliesTo = ({ object: schema }: Right, { object }: Right) =>
  schema === '' || object.startsWith(`${schema}.`) || object.startsWith(`${identifier(schema)}.`);
