import { randomUUID } from 'node:crypto';
import type { TestHost } from './host.ts';

/** Of no password: a branch needs a verifier in the tables. */
const VERIFIER = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';

/**
 * Rows, roles, memberships and catalog entries as branches have them. Their databases have no files, so nothing may
 * connect to them.
 */
const MAKE = `
  SET allow_system_table_mods = on;
  CREATE TEMPORARY TABLE made AS
    SELECT (5000000 + $N$ + n)::text AS oid, format('db_%s_prod_br_%s', '$P$', n) AS database,
      gen_random_uuid() AS branch_id
    FROM generate_series(1, $COUNT$) AS n;
  INSERT INTO branch (branch_id, project_id, job_id, database)
    SELECT branch_id, '$PROJECT$', branch_id, database FROM made;
  INSERT INTO branch_usage (branch_id, totals) SELECT branch_id, '{}' FROM made;
  DO $do$
  DECLARE
    one record;
    role text;
    digits text := replace('$PROJECT$', '-', '');
    names text[];
  BEGIN
    FOREACH role IN ARRAY ARRAY['owner', 'rw', 'ro'] LOOP
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = format('g_%s_%s', digits, role)) THEN
        EXECUTE format('CREATE ROLE g_%s_%s NOLOGIN', digits, role);
      END IF;
    END LOOP;
    FOR one IN SELECT * FROM made LOOP
      names := '{}';
      FOREACH role IN ARRAY ARRAY['owner', 'rw', 'ro', 'query'] LOOP
        names := names || format('u_%s_%s', replace(one.branch_id::text, '-', ''), role);
        EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', names[cardinality(names)],
          CASE WHEN role <> 'query' THEN '$VERIFIER$' END);
      END LOOP;
      EXECUTE format('GRANT g_%s_owner TO %I WITH INHERIT FALSE, SET TRUE', digits, names[1]);
      EXECUTE format('GRANT g_%s_rw TO %I WITH SET FALSE', digits, names[2]);
      EXECUTE format('GRANT g_%s_ro TO %I, %I WITH SET FALSE', digits, names[3], names[4]);
      INSERT INTO login (login, branch_id, verifier)
        SELECT name, one.branch_id, CASE WHEN name !~ '_query$' THEN '$VERIFIER$' END FROM unnest(names) AS name;
    END LOOP;
  END $do$;
  INSERT INTO pg_database
    SELECT (jsonb_populate_record(template, jsonb_build_object(
      'oid', made.oid, 'datname', database, 'datacl', null, 'datistemplate', false, 'datallowconn', true,
      'datconnlimit', 60))).*
    FROM pg_database AS template, made WHERE template.datname = 'template0';
  INSERT INTO pg_db_role_setting
    SELECT made.oid::oid, pg_roles.oid, ARRAY['role=g_' || replace('$PROJECT$', '-', '') || '_owner']
    FROM made JOIN pg_roles ON rolname = 'u_' || replace(branch_id::text, '-', '') || '_owner';
  INSERT INTO pg_db_role_setting SELECT made.oid::oid, 0, ARRAY['temp_file_limit=1GB'] FROM made;
  INSERT INTO pg_shdescription
    SELECT made.oid::oid, 'pg_database'::regclass, json_build_object(
      'branch_id', branch_id, 'project_id', '$PROJECT$', 'job_id', branch_id)::text
    FROM made;
  DROP TABLE made`;

let made = 0;

/** Makes so many branches of a project, which gets a record if it has none. They exist by name only. */
export async function makeNamedBranches(
  { connect }: TestHost,
  { count, projectId = randomUUID() }: { count: number; projectId?: string },
): Promise<void> {
  const session = await connect();
  try {
    await session.query(
      'INSERT INTO project (project_id, access_revision, tenant) VALUES ($1::uuid, 1, $1::uuid) ON CONFLICT DO NOTHING',
      [projectId],
    );
    await session.query(
      `INSERT INTO network_rule (project_id, cidr) SELECT $1::uuid, ('10.7.' || n || '.0/24')::cidr FROM generate_series(1, 3) AS n
       WHERE NOT EXISTS (SELECT FROM network_rule WHERE project_id = $1::uuid)`,
      [projectId],
    );
    await session.query(
      MAKE.replaceAll('$COUNT$', String(count))
        .replaceAll('$N$', String(made))
        .replaceAll('$P$', `n${made}`)
        .replaceAll('$PROJECT$', projectId)
        .replaceAll('$VERIFIER$', () => VERIFIER),
    );
    made += count;
  } finally {
    await session.end();
  }
}
