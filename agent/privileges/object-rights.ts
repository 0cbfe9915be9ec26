import { identifier, type Session } from '../postgres/connect.ts';
import { FIRST_OWN, noMember, OWN_SCHEMA } from '../postgres/own-objects.ts';

/** One right on one object, as a statement names both. */
export interface Right {
  kind: string;
  object: string;
  /** Null: of the whole object. */
  column: string | null;
  /** Null: everybody. */
  grantee: string | null;
  privilege: string;
  grantable: boolean;
}

const RIGHTS = `
  WITH held AS (
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, format('%I.%I', n.nspname, c.relname) AS object, NULL AS "column",
      coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)) AS acl
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND ${OWN_SCHEMA} AND ${noMember('pg_class', 'c.oid')}
    UNION ALL
    SELECT 'TABLE', format('%I.%I', n.nspname, c.relname), format('%I', a.attname), a.attacl
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE a.attacl IS NOT NULL AND a.attnum > 0 AND NOT a.attisdropped AND ${OWN_SCHEMA} AND ${noMember('pg_class', 'c.oid')}
    UNION ALL
    SELECT 'ROUTINE', format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)), NULL,
      coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.oid >= ${FIRST_OWN} AND ${OWN_SCHEMA} AND pg_has_role(p.proowner, 'USAGE') AND ${noMember('pg_proc', 'p.oid')}
    UNION ALL
    SELECT 'SCHEMA', format('%I', n.nspname), NULL, coalesce(n.nspacl, acldefault('n', n.nspowner))
    FROM pg_namespace AS n
    WHERE (n.oid >= ${FIRST_OWN} OR n.nspname = 'public') AND ${OWN_SCHEMA} AND (n.nspname = 'public' OR pg_has_role(n.nspowner, 'USAGE'))
      AND ${noMember('pg_namespace', 'n.oid')}
    UNION ALL
    SELECT 'TYPE', format('%I.%I', n.nspname, t.typname), NULL, t.typacl
    FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
    WHERE t.typacl IS NOT NULL AND t.oid >= ${FIRST_OWN} AND ${OWN_SCHEMA} AND ${noMember('pg_type', 't.oid')}
  )
  SELECT kind, object, "column", CASE WHEN grantee = 0 THEN NULL ELSE pg_get_userbyid(grantee)::text END AS grantee,
    privilege_type AS privilege, is_grantable AS grantable
  FROM held CROSS JOIN LATERAL aclexplode(acl)`;

/** Rights that objects get when they are made: by the role that makes them, in a schema or everywhere. */
const DEFAULTS = `
  SELECT 'DEFAULT ' || CASE objtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'FUNCTIONS' WHEN 'T' THEN 'TYPES' ELSE 'SCHEMAS' END AS kind,
    coalesce(nspname, '') AS object, NULL AS "column",
    CASE WHEN grantee = 0 THEN NULL ELSE pg_get_userbyid(grantee)::text END AS grantee, privilege_type AS privilege, is_grantable AS grantable
  FROM (
    SELECT objtype, NULL AS nspname, coalesce(
      (SELECT defaclacl FROM pg_default_acl WHERE defaclrole = $1::regrole AND defaclnamespace = 0 AND defaclobjtype = objtype),
      acldefault(CASE objtype WHEN 'S' THEN 's' ELSE objtype END, $1::regrole)) AS acl
    FROM unnest('{r,S,f,T,n}'::"char"[]) AS objtype
    UNION ALL
    SELECT defaclobjtype, nspname, defaclacl FROM pg_default_acl JOIN pg_namespace AS n ON n.oid = defaclnamespace
    WHERE defaclrole = $1::regrole
  ) AS defaults CROSS JOIN LATERAL aclexplode(acl)`;

const keyOf = (right: Right) => JSON.stringify(Object.values(right));
const isGiven = (text: unknown) => text === true || text === 't';

/** The rights on all objects of the session's database, and the default ones of the owner. */
export async function readRights(session: Session, owner: string): Promise<Map<string, Right>> {
  const rows = [
    ...(await session.query<Right>(RIGHTS)).rows,
    ...(await session.query<Right>(DEFAULTS, [identifier(owner)])).rows,
  ];
  return new Map(
    rows.map(({ kind, object, column, grantee, privilege, grantable }) => {
      const right = { kind, object, column, grantee, privilege, grantable: isGiven(grantable) };
      return [keyOf(right), right];
    }),
  );
}

export function rightStatement(verb: 'GRANT' | 'REVOKE', right: Right): string {
  const { kind, object, column, grantee, privilege, grantable } = right;
  const what = `${privilege}${column === null ? '' : ` (${column})`}`;
  const who = `${verb === 'GRANT' ? 'TO' : 'FROM'} ${grantee === null ? 'PUBLIC' : identifier(grantee)}`;
  const option = verb === 'GRANT' && grantable ? ' WITH GRANT OPTION' : '';
  const [, ofDefaults] = /^DEFAULT (.+)$/.exec(kind) ?? [];
  if (ofDefaults)
    return `ALTER DEFAULT PRIVILEGES ${object === '' ? '' : `IN SCHEMA ${identifier(object)}`} ${verb} ${what} ON ${ofDefaults} ${who}${option}`;
  return `${verb} ${what} ON ${kind} ${object} ${who}${option}`;
}
