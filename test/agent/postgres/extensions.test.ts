import { describe, expect, test } from 'vitest';
import { refusedStatement } from '../../../agent/postgres/extensions.ts';

const FINE: Record<string, string> = {
  'an empty script': '',
  "psql's line": '\\echo Use "CREATE EXTENSION x" to load this file. \\quit\n',
  'a shell type': 'CREATE TYPE point3;',
  'a function in C':
    "CREATE FUNCTION f(point3, integer = 1) RETURNS point3 AS 'MODULE_PATHNAME' LANGUAGE C STRICT;",
  'an operator, with comments':
    '-- a; b\nCREATE OPERATOR <-> ( /* ; */ LEFTARG = point3, RIGHTARG = point3, PROCEDURE = f);',
  'a cast': 'CREATE CAST (point3 AS real[]) WITH FUNCTION g(point3, integer) AS IMPLICIT;',
  'an access method':
    "CREATE ACCESS METHOD am TYPE INDEX HANDLER h;\nCOMMENT ON ACCESS METHOD am IS 'a; select 1';",
  'a changed function': 'ALTER FUNCTION f(point3) PARALLEL SAFE;',
};

const REFUSED: Record<string, string> = {
  'a query': 'SELECT f(1);',
  'a block': "DO 'begin perform f(1); end';",
  'a block in dollars': 'DO $do$ BEGIN PERFORM f(1); END $do$;',
  'a function in SQL': "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'select 1';",
  'a function with a body': 'CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN g();',
  'the rights of its owner': "CREATE FUNCTION f() RETURNS int AS 'x' LANGUAGE C SECURITY DEFINER;",
  'a table': 'CREATE TABLE t (id int DEFAULT f());',
  'a domain': 'CREATE DOMAIN d AS int CHECK (f(VALUE));',
  'a view': 'CREATE VIEW v AS SELECT f(1);',
  'an index': 'CREATE INDEX ON t (f(id));',
  'a row': 'INSERT INTO t VALUES (f(1));',
  'an update of the catalog': "UPDATE pg_proc SET prosrc = 'x';",
  'a parameter': 'SET search_path = public;',
  'a right': 'GRANT ALL ON SCHEMA public TO PUBLIC;',
  'another owner': 'ALTER TYPE point3 OWNER TO someone;',
  'a string with escapes': "CREATE TYPE point3; COMMENT ON TYPE point3 IS E'\\'; SELECT f(1); --';",
  'a statement after a comment in a comment': '/* /* */ SELECT f(1); /* */ */',
  'a statement after a name with a semicolon': 'CREATE TYPE "a;b"; CALL f();',
};

describe('the script of an extension', () => {
  test.each(Object.entries(FINE))('may have %s', (_, script) => {
    expect(refusedStatement(script)).toBeNull();
  });

  test.each(Object.entries(REFUSED))('must not have %s', (_, script) => {
    expect(refusedStatement(script)).toEqual(expect.any(String));
  });
});
