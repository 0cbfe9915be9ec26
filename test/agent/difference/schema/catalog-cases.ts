import type { SchemaCase } from './schema-cases.ts';

/** Changes that only the catalogs show, and kinds of objects that ordinary schemas have and differs forget. */

const PARTS = `CREATE TABLE part (id int NOT NULL, day date NOT NULL, n int) PARTITION BY RANGE (day);
  CREATE TABLE p1 PARTITION OF part FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
  CREATE TABLE p2 PARTITION OF part FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');`;
const BOOK = 'CREATE TABLE book (id int PRIMARY KEY, title text, price numeric);';
const TOUCH = "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';";

/** Each changes one thing. The statements bring either side to the other. */
export const CATALOG_CASES: readonly SchemaCase[] = [
  {
    name: 'unique index of a partitioned table',
    base: PARTS,
    here: 'CREATE UNIQUE INDEX one ON part (day, id)',
  },
  {
    name: 'primary key of a partitioned table',
    base: PARTS,
    here: 'ALTER TABLE part ADD PRIMARY KEY (id, day)',
  },
  {
    name: 'unique constraint of a partitioned table',
    base: PARTS,
    here: 'ALTER TABLE part ADD UNIQUE (day, n)',
  },
  {
    name: 'attached index of a partition',
    base: `${PARTS} CREATE INDEX by_n ON ONLY part (n); CREATE INDEX p1_by_n ON p1 (n);`,
    here: 'ALTER INDEX by_n ATTACH PARTITION p1_by_n',
  },
  {
    name: 'partitions of partitions with an index',
    here: `CREATE TABLE deep (a int, b int) PARTITION BY LIST (a); CREATE TABLE deep1 PARTITION OF deep FOR VALUES IN (1) PARTITION BY LIST (b);
      CREATE TABLE deep11 PARTITION OF deep1 FOR VALUES IN (1); CREATE UNIQUE INDEX ON deep (a, b)`,
  },
  {
    name: 'foreign key to a partitioned table',
    base: `${PARTS} ALTER TABLE part ADD PRIMARY KEY (id, day); CREATE TABLE sale (part_id int, part_day date);`,
    here: 'ALTER TABLE sale ADD FOREIGN KEY (part_id, part_day) REFERENCES part',
  },
  {
    name: 'trigger disabled on one partition',
    base: `${PARTS + TOUCH} CREATE TRIGGER t BEFORE INSERT ON part FOR EACH ROW EXECUTE FUNCTION touch();`,
    here: 'ALTER TABLE p1 DISABLE TRIGGER t',
  },
  {
    name: 'check with a list of values of a varchar',
    here: "CREATE TABLE t (kind varchar(9) CHECK (kind IN ('a', 'b')), note varchar DEFAULT 'x')",
  },
  { name: 'default of one partition', base: PARTS, here: 'ALTER TABLE p1 ALTER n SET DEFAULT 7' },
  {
    name: 'column of a partitioned table',
    base: PARTS,
    here: "ALTER TABLE part ADD note text NOT NULL DEFAULT 'none', ALTER n TYPE bigint",
  },
  {
    name: 'stored and virtual',
    base: 'CREATE TABLE book (id int, title text)',
    there: 'ALTER TABLE book ADD loud text GENERATED ALWAYS AS (upper(title)) STORED',
    here: 'ALTER TABLE book ADD loud text GENERATED ALWAYS AS (upper(title)) VIRTUAL',
  },
  {
    name: 'expression of a generated column',
    base: 'CREATE TABLE book (id int, title text)',
    there: 'ALTER TABLE book ADD loud text GENERATED ALWAYS AS (upper(title)) STORED',
    here: 'ALTER TABLE book ADD loud text GENERATED ALWAYS AS (lower(title)) STORED',
  },
  {
    name: 'not null that is not valid',
    base: BOOK,
    here: 'ALTER TABLE book ADD CONSTRAINT titled NOT NULL title NOT VALID',
  },
  {
    name: 'named not null',
    base: BOOK,
    there: 'ALTER TABLE book ALTER title SET NOT NULL',
    here: 'ALTER TABLE book ADD CONSTRAINT titled NOT NULL title',
  },
  {
    name: 'not null without children',
    base: BOOK,
    here: 'ALTER TABLE book ADD CONSTRAINT titled NOT NULL title NO INHERIT',
  },
  {
    name: 'not null that becomes valid',
    base: `${BOOK} ALTER TABLE book ADD CONSTRAINT titled NOT NULL title NOT VALID`,
    here: 'ALTER TABLE book VALIDATE CONSTRAINT titled',
  },
  {
    name: 'check that becomes valid',
    base: `${BOOK} ALTER TABLE book ADD CONSTRAINT paid CHECK (price > 0) NOT VALID`,
    here: 'ALTER TABLE book VALIDATE CONSTRAINT paid',
  },
  {
    name: 'comment on a column of a view',
    base: `${BOOK} CREATE VIEW v AS SELECT id FROM book`,
    here: "COMMENT ON COLUMN v.id IS 'the \"number\" IS ''this'''",
  },
  {
    name: 'default of a column of a view',
    base: `${BOOK} CREATE VIEW v AS SELECT id FROM book`,
    here: 'ALTER VIEW v ALTER id SET DEFAULT 5',
  },
  {
    name: 'second parent',
    base: 'CREATE TABLE a (x int); CREATE TABLE b (y int); CREATE TABLE c (x int, y int) INHERITS (a)',
    here: 'ALTER TABLE c INHERIT b',
  },
  {
    name: 'overridden default of a child',
    base: 'CREATE TABLE a (x int DEFAULT 1); CREATE TABLE c () INHERITS (a)',
    here: 'ALTER TABLE c ALTER x SET DEFAULT 2',
  },
  { name: 'unlogged sequence', there: 'CREATE SEQUENCE s', here: 'CREATE UNLOGGED SEQUENCE s' },
  {
    name: 'unlogged table with a serial',
    there: 'CREATE TABLE t (id serial)',
    here: 'CREATE UNLOGGED TABLE t (id serial)',
  },
  {
    name: 'typed table',
    base: 'CREATE TYPE row_of AS (id int, title text); CREATE TABLE t (id int, title text)',
    here: 'ALTER TABLE t OF row_of',
  },
  {
    name: 'statistics target of an index expression',
    base: `${BOOK} CREATE INDEX i ON book (lower(title))`,
    here: 'ALTER INDEX i ALTER COLUMN 1 SET STATISTICS 400',
  },
  {
    name: 'statistics target of a statistics object',
    base: `${BOOK} CREATE STATISTICS st ON id, title FROM book`,
    here: 'ALTER STATISTICS st SET STATISTICS 300',
  },
  {
    name: 'table with columns of an enum',
    here: "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE day (id int, mood mood, note text, other mood[], last int)",
  },
  {
    name: 'view that groups by a key',
    base: BOOK,
    here: 'CREATE VIEW v AS SELECT id, title, sum(price) FROM book GROUP BY id',
  },
  {
    name: 'changed view that groups by a key',
    base: BOOK,
    there: 'CREATE VIEW v AS SELECT id, title FROM book GROUP BY id',
    here: 'CREATE VIEW v AS SELECT id, title, price FROM book GROUP BY id',
  },
  {
    name: 'view over a materialized view',
    base: BOOK,
    here: 'CREATE MATERIALIZED VIEW m AS SELECT title FROM book; CREATE VIEW v AS SELECT title FROM m',
  },
  {
    name: 'materialized view below a view and an index',
    base: BOOK,
    there:
      'CREATE MATERIALIZED VIEW m AS SELECT title FROM book; CREATE VIEW v AS SELECT title FROM m; CREATE INDEX by_title ON m (title)',
    here: 'CREATE MATERIALIZED VIEW m AS SELECT upper(title) AS title FROM book; CREATE VIEW v AS SELECT title FROM m; CREATE INDEX by_title ON m (title)',
  },
  {
    name: 'domain with not null',
    there: 'CREATE DOMAIN label AS text',
    here: 'CREATE DOMAIN label AS text NOT NULL',
  },
  {
    name: 'check of a domain',
    base: 'CREATE DOMAIN label AS text; CREATE TABLE t (l label)',
    here: "ALTER DOMAIN label ADD CONSTRAINT filled CHECK (value <> '') NOT VALID",
  },
  {
    name: 'column of a multirange',
    here: 'CREATE TYPE span AS RANGE (subtype = float8, multirange_type_name = spans); CREATE TABLE plan (busy spans)',
  },
  {
    name: 'table with two parents',
    here: "CREATE TABLE a (x int); CREATE TABLE b (y text DEFAULT 'none'); CREATE TABLE c (id int) INHERITS (a, b)",
  },
  { name: 'forced row security', base: BOOK, here: 'ALTER TABLE book FORCE ROW LEVEL SECURITY' },
  {
    name: 'nondeterministic collation',
    here: "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE t (n text COLLATE ci UNIQUE)",
  },
  {
    name: 'trigger that always fires',
    base: `${BOOK + TOUCH} CREATE TRIGGER t BEFORE UPDATE ON book FOR EACH ROW EXECUTE FUNCTION touch()`,
    here: 'ALTER TABLE book ENABLE ALWAYS TRIGGER t',
  },
  {
    name: 'comment on a trigger',
    base: `${BOOK + TOUCH} CREATE TRIGGER t BEFORE UPDATE ON book FOR EACH ROW EXECUTE FUNCTION touch()`,
    here: "COMMENT ON TRIGGER t ON book IS 'touches'",
  },
  {
    name: 'transition tables of a trigger',
    base: BOOK + TOUCH,
    here: 'CREATE TRIGGER t AFTER UPDATE ON book REFERENCING OLD TABLE AS olds NEW TABLE AS news FOR EACH STATEMENT EXECUTE FUNCTION touch()',
  },
  {
    name: 'trigger of a view',
    base: `${BOOK + TOUCH} CREATE VIEW v AS SELECT id FROM book`,
    here: 'CREATE TRIGGER t INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION touch()',
  },
  {
    name: 'check option of a view',
    base: BOOK,
    there: 'CREATE VIEW v AS SELECT id FROM book WHERE id > 1',
    here: 'CREATE VIEW v AS SELECT id FROM book WHERE id > 1 WITH CASCADED CHECK OPTION',
  },
  {
    name: 'recursive view',
    here: 'CREATE RECURSIVE VIEW numbers (n) AS SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5',
  },
  {
    name: 'renamed column of a view',
    base: BOOK,
    there: 'CREATE VIEW v AS SELECT id FROM book',
    here: 'CREATE VIEW v AS SELECT id AS number FROM book',
  },
  {
    name: 'function over a view',
    base: `${BOOK} CREATE VIEW v AS SELECT id FROM book`,
    here: 'CREATE FUNCTION f() RETURNS SETOF v LANGUAGE sql BEGIN ATOMIC SELECT id FROM v; END',
  },
  {
    name: 'functions of one name',
    base: "CREATE FUNCTION f(x int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    here: "CREATE FUNCTION f(VARIADIC x int[]) RETURNS int LANGUAGE sql AS 'SELECT 2'",
  },
  {
    name: 'names of arguments',
    there: "CREATE FUNCTION f(x int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    here: "CREATE FUNCTION f(y int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
  },
  {
    name: 'function in a default',
    here: "CREATE FUNCTION next_id() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TABLE t (id int DEFAULT next_id(), CHECK (id <> next_id()))",
  },
  {
    name: 'aggregate of moving rows',
    here: 'CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int, MSFUNC = int4pl, MINVFUNC = int4mi, MSTYPE = int, PARALLEL = SAFE)',
  },
  {
    name: 'state of an aggregate',
    there: 'CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int)',
    here: 'CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int, INITCOND = 5)',
  },
  {
    name: 'key without overlaps',
    base: 'CREATE TABLE stay (room int4range, during daterange)',
    here: 'ALTER TABLE stay ADD CONSTRAINT apart PRIMARY KEY (room, during WITHOUT OVERLAPS)',
  },
  {
    name: 'foreign key that is not enforced',
    base: `${BOOK} CREATE TABLE sale (book int)`,
    here: 'ALTER TABLE sale ADD FOREIGN KEY (book) REFERENCES book NOT ENFORCED',
  },
  {
    name: 'foreign key that is not valid',
    base: `${BOOK} CREATE TABLE sale (book int)`,
    here: 'ALTER TABLE sale ADD FOREIGN KEY (book) REFERENCES book ON DELETE SET NULL (book) NOT VALID',
  },
  {
    name: 'foreign keys in a circle',
    here: 'CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a); ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b',
  },
  {
    name: 'key with included columns',
    base: 'CREATE TABLE t (a int, b int)',
    here: 'ALTER TABLE t ADD UNIQUE (a) INCLUDE (b)',
  },
  {
    name: 'replica identity of an index',
    base: 'CREATE TABLE t (a int NOT NULL); CREATE UNIQUE INDEX one ON t (a)',
    here: 'ALTER TABLE t REPLICA IDENTITY USING INDEX one',
  },
  {
    name: 'options of long values',
    base: BOOK,
    here: 'ALTER TABLE book SET (toast.autovacuum_enabled = false, autovacuum_vacuum_scale_factor = 0.05)',
  },
  {
    name: 'options of an index',
    base: `${BOOK} CREATE INDEX i ON book (title)`,
    here: 'ALTER INDEX i SET (fillfactor = 60)',
  },
  {
    name: 'renamed value of an enum',
    base: "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE day (mood mood)",
    here: "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
  },
  {
    name: 'first value of an enum',
    base: "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE day (mood mood)",
    here: "ALTER TYPE mood ADD VALUE 'awful' BEFORE 'sad'; ALTER TYPE mood ADD VALUE 'bad' BEFORE 'sad'",
  },
  {
    name: 'comment on an attribute',
    base: 'CREATE TYPE pair AS (x int, y int)',
    here: "COMMENT ON COLUMN pair.x IS 'left'",
  },
  {
    name: 'renamed constraint',
    base: BOOK,
    here: 'ALTER TABLE book RENAME CONSTRAINT book_pkey TO book_key',
  },
  {
    name: 'renamed sequence of a serial',
    base: 'CREATE TABLE t (id serial)',
    here: 'ALTER SEQUENCE t_id_seq RENAME TO other_seq',
  },
  { name: 'start of a sequence', there: 'CREATE SEQUENCE s', here: 'CREATE SEQUENCE s START 100 CACHE 20' },
  {
    name: 'options of an identity column',
    base: 'CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY)',
    here: 'ALTER TABLE t ALTER id SET INCREMENT 10',
  },
  {
    name: 'new identity column',
    base: 'CREATE TABLE t (a int)',
    here: 'ALTER TABLE t ADD id bigint GENERATED BY DEFAULT AS IDENTITY (START 1000)',
  },
  {
    name: 'new serial column',
    base: 'CREATE TABLE t (a int)',
    here: 'ALTER TABLE t ADD id bigserial PRIMARY KEY',
  },
  {
    name: 'policy below a changed column',
    base: `${BOOK} CREATE POLICY p ON book USING (price > 1)`,
    here: 'DROP POLICY p ON book; ALTER TABLE book ALTER price TYPE int; CREATE POLICY p ON book USING (price > 1)',
  },
  {
    name: 'operator with a commutator',
    here: `CREATE FUNCTION near(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'; CREATE OPERATOR === (LEFTARG = text, RIGHTARG = text, FUNCTION = near, COMMUTATOR = ===)`,
  },
  {
    name: 'text search configuration in a column',
    here: "CREATE TEXT SEARCH CONFIGURATION plain (COPY = simple); CREATE TABLE t (body text, tsv tsvector GENERATED ALWAYS AS (to_tsvector('%s.plain', body)) STORED)",
  },
  {
    name: 'mapping of a text search configuration',
    base: 'CREATE TEXT SEARCH CONFIGURATION plain (COPY = simple)',
    here: 'ALTER TEXT SEARCH CONFIGURATION plain ALTER MAPPING FOR word WITH english_stem',
  },
  { name: 'order of columns', there: 'CREATE TABLE t (a int, b int)', here: 'CREATE TABLE t (b int, a int)' },
];

/** Statements bring the columns, in another order. */
export const COLUMN_ORDERS: readonly string[] = ['order of columns', 'renamed column'];

/** PostgreSQL writes the expression in another way once it is made again. */
export const REWRITTEN: readonly string[] = ['check with a list of values of a varchar'];

/** Cases of which no statement leads back: PostgreSQL removes no value of an enum, and detaches no index. */
export const ONE_WAY: readonly string[] = [
  'value of an enum',
  'value of an enum that is used',
  'first value of an enum',
  'attached index of a partition',
  // The inherited column would come first.
  'inherited columns that a table had not',
];
