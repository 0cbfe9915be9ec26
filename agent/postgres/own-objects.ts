/** SQL conditions for what is neither PostgreSQL's nor an extension's. */

/** The first object id that is not PostgreSQL's own. */
export const FIRST_OWN = 16_384;
/** Of a row `n` of `pg_namespace`. */
export const OWN_SCHEMA = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'";
/** An object that belongs to no extension. */
export const noMember = (catalog: string, id: string) => `NOT EXISTS (SELECT FROM pg_depend AS d
  WHERE d.classid = '${catalog}'::regclass AND d.objid = ${id} AND d.deptype = 'e')`;
