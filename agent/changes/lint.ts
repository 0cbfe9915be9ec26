import type { Finding } from '../../shared/protocol/change-operations.ts';

/** The rules of a change: which form of a statement holds a lock for long, and which one does the same without it. */

interface Rule {
  /** Matches the words of a statement, as `wordsOf` returns them. */
  form: RegExp;
  unless?: RegExp;
  /** The effect of the lock, for as long as the statement runs. */
  message: string;
  instead: string;
}

const NO_WRITES = 'Nobody can write to the table while the statement runs.';
const NO_READS = 'Nobody can read or write the table while the statement runs.';
const REWRITES = 'The table is written again, and nobody can read or write it meanwhile.';

export const LINT_RULES: Readonly<Record<string, Rule>> = {
  'index-not-concurrent': {
    form: /^ create (?:unique )?index (?!concurrently )/,
    message: NO_WRITES,
    instead: 'CREATE INDEX CONCURRENTLY',
  },
  'drop-index-not-concurrent': {
    form: /^ drop index (?!concurrently )/,
    message:
      'It takes an ACCESS EXCLUSIVE lock on the table, behind which every query waits for the transactions before it.',
    instead: 'DROP INDEX CONCURRENTLY',
  },
  'reindex-not-concurrent': {
    form: /^ reindex /,
    unless: / concurrently /,
    message: NO_WRITES,
    instead: 'REINDEX … CONCURRENTLY',
  },
  'foreign-key-validated': {
    form: /^ alter table .*(?: foreign key | add (?:column )?(?:if not exists )?\S+ .*references )/,
    unless: / not valid /,
    message: 'Nobody can write to either table while the existing rows are checked.',
    instead: 'ADD CONSTRAINT … FOREIGN KEY … NOT VALID, then VALIDATE CONSTRAINT as a statement of its own',
  },
  'check-validated': {
    form: /^ alter table .* add (?:constraint \S+ )?check /,
    unless: / not (?:valid|enforced) /,
    message: 'Nobody can read or write the table while the existing rows are checked.',
    instead: 'ADD CONSTRAINT … CHECK (…) NOT VALID, then VALIDATE CONSTRAINT as a statement of its own',
  },
  'set-not-null': {
    form: /^ alter table .* set not null /,
    message: 'Nobody can read or write the table while every row is read.',
    instead: 'ADD CONSTRAINT … NOT NULL column NOT VALID, then VALIDATE CONSTRAINT as a statement of its own',
  },
  'unique-builds-index': {
    form: /^ alter table .* add (?:constraint \S+ )?unique /,
    unless: / using index /,
    message: NO_READS,
    instead: 'CREATE UNIQUE INDEX CONCURRENTLY, then ADD CONSTRAINT … UNIQUE USING INDEX',
  },
  'primary-key-builds-index': {
    form: /^ alter table .* add (?:constraint \S+ )?primary key /,
    unless: / using index /,
    message: NO_READS,
    instead:
      'CREATE UNIQUE INDEX CONCURRENTLY, a validated NOT NULL, then ADD CONSTRAINT … PRIMARY KEY USING INDEX',
  },
  'type-rewrites': {
    form: /^ alter table .* alter (?:column )?\S+ (?:set data )?type /,
    message: `${REWRITES} PostgreSQL spares that for a few types only, such as varchar to text.`,
    instead:
      'a new column that a trigger fills, batches for the rows before, and then the change of the readers',
  },
  'volatile-default': {
    form: /^ alter table .* add (?:column )?(?:if not exists )?\S+ .*(?: default .*\b(?:gen_random_uuid|uuidv4|uuidv7|random|clock_timestamp|nextval|timeofday) \(| (?:small|big)?serial | generated \S+(?: default)? as identity )/,
    message: REWRITES,
    instead: 'ADD COLUMN without a default, then SET DEFAULT for new rows, and batches for the rows before',
  },
  'stored-generated': {
    form: /^ alter table .* add .* generated always as \( .*\) stored /,
    message: REWRITES,
    instead: 'GENERATED ALWAYS AS (…) VIRTUAL',
  },
  'refresh-not-concurrent': {
    form: /^ refresh materialized view (?!concurrently )/,
    unless: / with no data /,
    message: 'Nobody can read the view while it is computed.',
    instead: 'REFRESH MATERIALIZED VIEW CONCURRENTLY, which needs a unique index',
  },
  'detach-not-concurrent': {
    form: /^ alter table .* detach partition /,
    unless: / (?:concurrently|finalize) /,
    message: 'It takes an ACCESS EXCLUSIVE lock on the whole partitioned table.',
    instead: 'DETACH PARTITION … CONCURRENTLY',
  },
  'attach-scans': {
    form: /^ alter table .* attach partition /,
    message: 'The new partition cannot be read or written while its rows are checked.',
    instead: 'a validated CHECK with the bounds on the new partition first, so that nothing is checked again',
  },
  'full-vacuum': {
    form: /^ (?:vacuum (?:\( [^)]*\bfull\b|full )|cluster )/,
    message: REWRITES,
    instead: 'VACUUM',
  },
};

/** @param words as `wordsOf` returns them */
export const findingsOf = (words: string): Finding[] =>
  Object.entries(LINT_RULES).flatMap(([rule, { form, unless, message, instead }]) =>
    form.test(words) && !unless?.test(words) ? [{ rule, message, instead }] : [],
  );
