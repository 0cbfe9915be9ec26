import { chownSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { serverUser } from '../../dev/stack/os-user.ts';
import { asRoot } from './host/host.ts';

/**
 * A stand-in for PostGIS, which is not to be had for each version of PostgreSQL. Like PostGIS it is no trusted extension, has a
 * table with rows in `public`, views and rules, and its script runs queries. Worse than PostGIS, it grants every right on its
 * table, and its function with the rights of its owner runs what it is given.
 */

export const STAND_IN_VERSION = '3.9.1';

const SCRIPT = `
CREATE TYPE @extschema@.geometry AS (x float8, y float8);
CREATE FUNCTION @extschema@.st_point(float8, float8) RETURNS @extschema@.geometry LANGUAGE sql IMMUTABLE
  AS 'SELECT ROW($1, $2)::@extschema@.geometry';
CREATE FUNCTION @extschema@.st_estimated(text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
  AS 'DECLARE found text; BEGIN EXECUTE $1 INTO found; RETURN found; END';
CREATE TABLE @extschema@.spatial_ref_sys (srid integer PRIMARY KEY, srtext text);
CREATE FUNCTION checked(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT $1';
INSERT INTO spatial_ref_sys SELECT checked(n), 'system ' || n FROM generate_series(4000, 4400) AS n;
DO $$ BEGIN
  IF (SELECT count(*) FROM spatial_ref_sys WHERE checked(srid) = 4326) <> 1 THEN RAISE 'no systems'; END IF;
END $$;
SELECT pg_catalog.pg_extension_config_dump('spatial_ref_sys', 'WHERE srid > 4400');
CREATE VIEW geometry_columns AS SELECT n.nspname AS f_table_schema, c.relname AS f_table_name, a.attname AS f_geometry_column
  FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_type AS t ON t.oid = a.atttypid WHERE t.typname = 'geometry' AND c.relkind = 'r';
CREATE RULE geometry_columns_insert AS ON INSERT TO geometry_columns DO INSTEAD NOTHING;
GRANT ALL ON spatial_ref_sys, geometry_columns TO PUBLIC;
`;

interface Server {
  query: (sql: string) => Promise<unknown>;
}

/**
 * Lets a server find the extension.
 * @param folder that the server can read; the files are written below it
 * @param before folders that stay first in its path
 * @param isSearched by a server before version 18, which has no path
 */
export async function installStandIn(
  { query }: Server,
  folder: string,
  { version = STAND_IN_VERSION, before = [] as string[], isSearched = false } = {},
): Promise<void> {
  asRoot(() => writeFiles(folder, version));
  if (isSearched) return;
  await query(`ALTER SYSTEM SET extension_control_path = '${[...before, folder, '$system'].join(':')}'`);
  await query('SELECT pg_reload_conf()');
}

function writeFiles(folder: string, version: string): void {
  const path = join(folder, 'extension');
  mkdirSync(path, { recursive: true });
  const files = {
    'postgis.control': `default_version = '${version}'\nrelocatable = false\nsuperuser = true\n`,
    [`postgis--${version}.sql`]: SCRIPT,
    [`postgis--${version}--9.sql`]: 'SELECT 1;',
    'postgis_raster.control': `default_version = '${version}'\nrequires = 'postgis'\n`,
    [`postgis_raster--${version}.sql`]: 'SELECT 1;',
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(path, name), text);
  const { uid, gid } = serverUser();
  if (process.geteuid?.() === 0)
    for (const name of [folder, path, ...Object.keys(files).map((file) => join(path, file))])
      chownSync(name, uid, gid);
}
