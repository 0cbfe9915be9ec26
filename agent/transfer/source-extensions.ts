import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import type { Session } from '../postgres/connect.ts';
import { FIRST_OWN } from '../postgres/own-objects.ts';
import { atSource } from './copy-rows.ts';
import type { LeftAlone } from './left-alone.ts';
import { finding, listNames, short } from './source-address.ts';

/**
 * Extensions of a source that this host does not have. One counts only if something that is copied depends on it; the
 * others are left out.
 */

const OBJECTS_MAX = 2_000;

/**
 * Objects that depend on an extension, and are neither its own nor another one's. Parts of its objects, such as array types and
 * the indexes of its tables, are its own without being members.
 */
const NEEDED = `
  WITH RECURSIVE own AS (
    SELECT extname, 'pg_extension'::regclass::oid AS classid, oid AS objid FROM pg_extension WHERE extname = ANY ($1::text[])
    UNION
    SELECT own.extname, d.classid, d.objid FROM own
    JOIN pg_depend AS d ON d.refclassid = own.classid AND d.refobjid = own.objid AND d.deptype IN ('e', 'a', 'i')
  )
  SELECT DISTINCT own.extname AS extension, pg_describe_object(d.classid, d.objid, d.objsubid) AS object,
    -- A rule is a part of its view, and a default of its table.
    coalesce(view.classid, CASE WHEN def.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass END) || ' ' || coalesce(view.objid, def.adrelid, d.objid) AS key,
    other.extname AS other, view.name AS view
  FROM own JOIN pg_depend AS d ON d.refclassid = own.classid AND d.refobjid = own.objid AND d.deptype = 'n'
  LEFT JOIN pg_extension AS other ON d.classid = 'pg_extension'::regclass AND other.oid = d.objid
  LEFT JOIN pg_attrdef AS def ON d.classid = 'pg_attrdef'::regclass AND def.oid = d.objid
  LEFT JOIN LATERAL (
    SELECT 'pg_class'::regclass::oid AS classid, c.oid AS objid, c.oid::regclass::text AS name
    FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class
    WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid AND c.relkind IN ('v', 'm')
  ) AS view ON true
  WHERE NOT EXISTS (SELECT FROM own AS same WHERE same.extname = own.extname AND same.classid = d.classid AND same.objid = d.objid)
    AND NOT EXISTS (SELECT FROM pg_depend AS m
      WHERE m.classid = coalesce(view.classid, d.classid) AND m.objid = coalesce(view.objid, d.objid) AND m.deptype = 'e')
  ORDER BY 1, 2 LIMIT ${OBJECTS_MAX}`;

/** Bodies of functions are texts, on which pg_depend has nothing. */
const NAMED_IN_BODIES = `
  SELECT DISTINCT e.extname AS extension, f.oid::regprocedure::text AS function, 'pg_proc'::regclass::oid || ' ' || f.oid AS key
  FROM pg_extension AS e
  JOIN pg_depend AS d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
  JOIN pg_proc AS used ON used.oid = d.objid
  JOIN pg_proc AS f ON f.prosrc ~* ('\\m' || regexp_replace(used.proname, '\\W', '\\\\\\&', 'g') || '\\M')
  JOIN pg_language AS l ON l.oid = f.prolang AND l.lanname NOT IN ('internal', 'c')
  WHERE e.extname = ANY ($1::text[]) AND f.oid >= ${FIRST_OWN} AND NOT EXISTS (SELECT FROM pg_depend AS m
    WHERE m.classid = 'pg_proc'::regclass AND m.objid = f.oid AND m.deptype = 'e')
  ORDER BY 1, 2 LIMIT ${OBJECTS_MAX}`;

interface Need {
  extension: string;
  object: string;
  /** `catalog oid`, of the view for its rule. */
  key: string;
  /** Another extension that needs it. */
  other: string | null;
  view: string | null;
}

const WAYS_OUT =
  'Exclude their tables with exclude_tables, convert their columns at the source, or ask the operator of the database host to add it to EXTENSIONS. Extensions of PROJECT_EXTENSIONS are named at the creation of a project.';

/**
 * @param missing extensions of the source that owners of branches cannot create
 * @param requested what the request leaves alone, which needs nothing
 * @returns those that can be left out, with a finding for each
 */
export async function readExtensionUse(
  session: Session,
  missing: readonly string[],
  { objects }: Pick<LeftAlone, 'objects'>,
): Promise<{ leftOut: string[]; findings: SourceFinding[] }> {
  if (missing.length === 0) return { leftOut: [], findings: [] };
  const needs = (await atSource(session.query<Need>(NEEDED, [missing]))).rows.filter(
    ({ key }) => !objects.has(key),
  );
  // An extension that only another one needs is dropped with that.
  const leftOut = new Set(missing);
  const isNeeded = (name: string) =>
    needs.some(
      ({ extension, view, other }) =>
        extension === name && view === null && (other === null || !leftOut.has(other)),
    );
  for (let before = -1; before !== leftOut.size; ) {
    before = leftOut.size;
    for (const name of leftOut) if (isNeeded(name)) leftOut.delete(name);
  }
  const { rows: bodies } = await atSource(
    session.query<{ extension: string; function: string; key: string }>(NAMED_IN_BODIES, [[...leftOut]]),
  );
  const findings = missing.map((name) => {
    const of = needs.filter(({ extension }) => extension === name);
    const object = short(name);
    if (!leftOut.has(name)) {
      const objectsOf = of.filter(({ view }) => view === null).map((need) => need.object);
      return finding(
        'extension',
        `The owner of a branch cannot create the extension ${object}, which these objects need: ${listNames(objectsOf)}. ${WAYS_OUT}`,
        { object },
      );
    }
    const views = [...new Set(of.flatMap(({ view }) => view ?? []))];
    const functions = bodies.filter(({ extension, key }) => extension === name && !objects.has(key));
    return finding(
      'extension',
      [
        `Nothing else needs the extension ${object}, which the owner of a branch cannot create, so it is left out.`,
        ...(views.length > 0 ? [`These views use it, and are left out with it: ${listNames(views)}.`] : []),
        ...(functions.length > 0
          ? [
              `These functions name functions of it, and fail when they are called: ${listNames(functions.map((each) => each.function))}.`,
            ]
          : []),
      ].join(' '),
      { object, severity: 'warning' },
    );
  });
  return { leftOut: [...leftOut], findings };
}
