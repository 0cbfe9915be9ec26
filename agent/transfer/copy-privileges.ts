import type { Session } from '../postgres/connect.ts';
import { type Right, readRights, rightStatement } from '../privileges/object-rights.ts';
import { atSource, refused } from './copy-rows.ts';
import { finding, Refused, short } from './source-address.ts';

/**
 * Privileges of a database that moves to another host, where its roles have the same names. Between other servers they are
 * left out, because their roles differ.
 */

const without = (some: ReadonlyMap<string, Right>, others: ReadonlyMap<string, Right>): Right[] =>
  [...some].flatMap(([key, right]) => (others.has(key) ? [] : [right]));

/**
 * Gives the objects of a copy the rights that they have at the source.
 * @param target acts as the owner of all objects
 * @param owner that role, which is the owner at the source too
 * @throws Refused if they still differ. Errors of the source are marked
 */
export async function copyPrivileges(source: Session, target: Session, owner: string): Promise<void> {
  const wanted = await atSource(readRights(source, owner));
  const grantees = [...new Set([...wanted.values()].flatMap(({ grantee }) => grantee ?? []))];
  const { rows } = await target.query<{ name: string }>(
    'SELECT rolname AS name FROM pg_catalog.pg_roles WHERE rolname = ANY ($1)',
    [grantees],
  );
  // Logins of branches that are left out, or were deleted.
  const present = new Set(rows.map(({ name }) => name));
  for (const [key, { grantee }] of wanted) if (grantee !== null && !present.has(grantee)) wanted.delete(key);
  const found = await readRights(target, owner);
  const statements = [
    ...without(found, wanted).map((right) => rightStatement('REVOKE', right)),
    ...without(wanted, found).map((right) => rightStatement('GRANT', right)),
  ];
  for (const statement of statements)
    await target.query(statement).catch((error) => {
      throw refused(error, (reason) =>
        finding('schema', `PostgreSQL refuses a privilege of the source here: ${reason}.`),
      );
    });
  const made = await readRights(target, owner);
  const [left] = [...without(wanted, made), ...without(made, wanted)];
  if (left)
    throw new Refused(
      finding('schema', `The privileges on ${short(left.object)} could not be copied.`, {
        object: short(left.object),
      }),
    );
}
