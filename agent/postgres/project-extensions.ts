import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { identifier, inTransaction, type Queryable, type Session } from './connect.ts';
import type { RefusedExtension } from './extensions.ts';
import { sqlState } from './postgres-failure.ts';

/**
 * Extensions that the agent creates in the empty databases of a project, before any statement of a tenant, if the operator
 * names them in `PROJECT_EXTENSIONS`, with the reason. Their scripts run queries as a superuser, which objects of a tenant
 * would trick, so owners never create or update them (`docs/decisions/project-extensions.md`).
 */
const KNOWN_EXTENSIONS: Readonly<Record<string, string>> = {
  postgis:
    'Its functions run with the rights of their caller once `CONFINE` has altered those that do not. Its views read catalogs only.',
};

type Offered = NonNullable<HostDescription['project_extensions']>[number];

/** The extensions of `PROJECT_EXTENSIONS` that this host can create, and those that it cannot. */
export async function readProjectExtensions(
  { PROJECT_EXTENSIONS }: Pick<AgentSettings, 'PROJECT_EXTENSIONS'>,
  postgres: Queryable,
): Promise<{ offered: Offered[]; refused: RefusedExtension[] }> {
  if (PROJECT_EXTENSIONS.length === 0) return { offered: [], refused: [] };
  const { rows: installed } = await postgres.query<Offered>(
    'SELECT name, default_version AS version FROM pg_available_extensions WHERE name = ANY ($1) ORDER BY 1',
    [PROJECT_EXTENSIONS],
  );
  const refused: RefusedExtension[] = [];
  for (const name of PROJECT_EXTENSIONS) {
    if (!Object.hasOwn(KNOWN_EXTENSIONS, name))
      refused.push({ name, reason: `it is none of ${Object.keys(KNOWN_EXTENSIONS).join(', ')}` });
    else if (!installed.some((each) => each.name === name))
      refused.push({ name, reason: 'it is not installed on this host' });
  }
  return { offered: installed.filter(({ name }) => !refused.some((each) => each.name === name)), refused };
}

/** Records what each new database of the project gets. */
export const recordExtensions = (db: Queryable, projectId: string, names: readonly string[]) =>
  db.query(
    `INSERT INTO project_extensions (project_id, names) VALUES ($1, $2)
     ON CONFLICT (project_id) DO UPDATE SET names = excluded.names`,
    [projectId, names],
  );

/** The extensions that the project was created with. */
export async function extensionsOfProject(db: Queryable, projectId: string): Promise<string[]> {
  const { rows } = await db.query<{ names: string[] }>(
    'SELECT names FROM project_extensions WHERE project_id = $1',
    [projectId],
  );
  return rows[0]?.names ?? [];
}

/**
 * Takes from an extension what a tenant could use against its superuser: `SECURITY DEFINER`, and every right on its tables but
 * to read them. With `REFERENCES` a foreign key would run casts of the tenant as the owner of the table.
 */
const CONFINE = `
  DO $confine$
  DECLARE
    member record;
  BEGIN
    FOR member IN
      SELECT d.classid, d.objid, p.prosecdef AS defines, c.relkind FROM pg_catalog.pg_depend AS d
      JOIN pg_catalog.pg_extension AS e ON e.oid = d.refobjid
      LEFT JOIN pg_catalog.pg_proc AS p ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid
      LEFT JOIN pg_catalog.pg_class AS c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid
      WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e' AND e.extname = '%NAME%'
    LOOP
      IF member.defines THEN
        EXECUTE pg_catalog.format('ALTER ROUTINE %s SECURITY INVOKER', member.objid::pg_catalog.regprocedure);
      ELSIF member.relkind IN ('r', 'p', 'v', 'm', 'f') THEN
        EXECUTE pg_catalog.format('REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER, MAINTAIN ON %s FROM PUBLIC', member.objid::pg_catalog.regclass);
      END IF;
    END LOOP;
  END $confine$`;

/**
 * Opens the schema `public` of an empty database to the owners of its project, after its extensions were created there. The
 * owner of a schema can drop it with what is in it, so with extensions they get all rights on it and do not own it.
 * @param session a superuser's, in a database that no statement of a tenant has reached
 * @param owners the role
 * @throws HostError INVALID_CALL for an extension that this host does not have
 */
export function openPublic(session: Session, owners: string, extensions: readonly string[]): Promise<void> {
  const role = identifier(owners);
  return inTransaction(session, async () => {
    for (const name of extensions) {
      if (!Object.hasOwn(KNOWN_EXTENSIONS, name)) throw missing(name);
      await session
        .query(`CREATE EXTENSION IF NOT EXISTS ${identifier(name)} SCHEMA public`)
        .catch((error) => {
          throw UNAVAILABLE.has(sqlState(error) ?? '') ? missing(name) : error;
        });
      await session.query(CONFINE.replace('%NAME%', name));
    }
    await session.query(
      extensions.length === 0
        ? `ALTER SCHEMA public OWNER TO ${role}`
        : `GRANT ALL ON SCHEMA public TO ${role} WITH GRANT OPTION`,
    );
  });
}

/** No control file, and no script of the version. */
const UNAVAILABLE = new Set(['0A000', '22023', '58P01']);

const missing = (name: string) =>
  new HostError('INVALID_CALL', `this host creates no databases with the extension ${name}`);
