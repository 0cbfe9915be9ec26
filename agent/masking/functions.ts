import { createHash, createHmac } from 'node:crypto';
import type { MaskingRule } from '../../shared/masking.ts';
import { identifier, literal } from '../postgres/connect.ts';

/** What a column holds, as far as masking is concerned. */
export type ValueKind =
  | 'text'
  | 'integer'
  | 'numeric'
  | 'float'
  | 'date'
  | 'timestamp'
  | 'uuid'
  | 'bytea'
  | 'json'
  | 'other';

/** A column that a rule may replace. */
export interface MaskedColumn {
  name: string;
  /** PostgreSQL's text of the type, with its schema unless that is `pg_catalog`. */
  type: string;
  /** Of a value, or of the elements of an array. */
  kind: ValueKind;
  isArray: boolean;
  /** The base type of a value or element, such as `int4`. */
  base: string;
  /** Characters, or null for no limit. */
  maxLength: number | null;
  /** Of a numeric with a declared precision. */
  largest: string | null;
}

/**
 * The two blocks of HMAC (RFC 2104) for the key, by which PostgreSQL computes HMAC-SHA-256 with `sha256`
 * alone. They are parameters of statements, never part of their text: a statement's text can be logged, and
 * sessions of the same login see it.
 */
export function keyBlocks(key: Uint8Array): [inner: Buffer, outer: Buffer] {
  const block = Buffer.alloc(64);
  block.set(key.length > 64 ? createHash('sha256').update(key).digest() : key);
  return [
    Buffer.from(block.map((byte: number) => byte ^ 0x36)),
    Buffer.from(block.map((byte: number) => byte ^ 0x5c)),
  ];
}

/** The key of previews, from which that of the project does not follow. */
export const previewKey = (key: Uint8Array): Uint8Array =>
  createHmac('sha256', key).update('preview').digest();

const INNER = '$1::pg_catalog.bytea';
const OUTER = '$2::pg_catalog.bytea';

/** HMAC of a text. `use` separates the functions: the same value has another digest in each. */
const hmac = (use: string, value: string) =>
  `pg_catalog.sha256(${OUTER} || pg_catalog.sha256(${INNER} || pg_catalog.convert_to(${literal(`${use}:`)} || ${value}, 'UTF8')))`;

/** Shorter texts are permuted, so that different ones stay different; longer ones get 80 bits and more. */
const PERMUTED_BELOW = 20;

const ALPHABET = 'bcdfghjkmnpqrstv';

/** A number from 0 to 2^31 of the digest. */
const numberOf = (digest: string) =>
  `(('x' || pg_catalog.encode(pg_catalog.substr(${digest}, 1, 4), 'hex'))::bit(32)::int8 & 2147483647)`;

const FIRST_NAMES =
  'Ada Alex Amal Ana Andre Anna Ben Bo Carla Chen Dana Dario Elif Emil Eva Farid Fay Gus Hana Ida Igor Ines Ivan Jana Jo Juan Kai Kim Lars Lea Leo Lin Lou Mara Max Mei Mia Milo Nia Nils Noa Nora Omar Ona Otto Pia Raj Rena Rui Sam Sara Sol Tara Tim Toni Uma Vera Vito Wanda Wim Yan Yuki Zoe Zora';
const LAST_NAMES =
  'Abel Adler Alves Aoki Bauer Berg Blum Brandt Castro Costa Cruz Dahl Diaz Dorn Eder Falk Faro Fink Flores Frank Garcia Gold Gomes Grau Haas Hahn Holm Horn Ito Jansen Jung Kern Klein Koch Kohl Lang Lima Lopez Lund Marin Mato Meier Mora Nagy Neri Noll Okafor Ortiz Pohl Ramos Reis Roth Sato Silva Sommer Sora Stein Torres Vega Vogt Weber Wolf Yilmaz Zander';
const arrayOf = (words: string) => `'{${words.replaceAll(' ', ',')}}'::pg_catalog.text[]`;

const OWN_PATH = 'SET search_path = pg_catalog, pg_temp';

/**
 * Where the functions are. Code of the tenant that runs in the session could replace those in `pg_temp`, and would
 * then get the key, so these are for previews alone, which have another one.
 */
export type FunctionSchema = 'branchgate_masking' | 'pg_temp';

/**
 * Functions that exist as long as a masking. They have the blocks of the key as arguments and keep none.
 *
 * `branchgate_permute` replaces letters by letters and digits by digits: P⁻¹, one step on, P, where P is a
 * Feistel network over the characters, whose round function is HMAC. Different texts of one form stay
 * different, because each part can be undone; none stays what it was, because of the step. For a number it
 * repeats this until the result is a number as long as the given one, which preserves both. In hexadecimal
 * text, a digit becomes any of the sixteen.
 *
 * Each has a search path of its own: a function in an index of the tenant can set that of the session between
 * two rows, and another `sha256` would get the key.
 */
export const maskingFunctions = (schema: FunctionSchema): string => `
  CREATE FUNCTION ${schema}.branchgate_permute(value text, inner_block bytea, outer_block bytea, kind text, most numeric)
  RETURNS text LANGUAGE plpgsql ${OWN_PATH} AS $f$
  DECLARE
    form text := CASE WHEN kind = 'hex' THEN repeat('0', length(value))
      ELSE regexp_replace(regexp_replace(regexp_replace(value COLLATE "C", '[0-9]', '0', 'g'), '[a-z]', 'a', 'g'), '[A-Z]', 'A', 'g') END;
    places int[] := '{}'; sizes int[] := '{}'; starts int[] := '{}'; digits int[] := '{}';
    code int; m int; half int; digest bytea; step int; low int; high int; n int; was_zero boolean; result text; tries int := 0;
  BEGIN
    FOR i IN 1..length(value) LOOP
      code := ascii(substr(value, i, 1));
      IF kind = 'hex' THEN sizes := sizes || 16; starts := starts || 48; digits := digits || (strpos('0123456789abcdef', chr(code)) - 1);
      ELSIF code BETWEEN 48 AND 57 THEN sizes := sizes || 10; starts := starts || 48; digits := digits || (code - 48);
      ELSIF code BETWEEN 97 AND 122 THEN sizes := sizes || 26; starts := starts || 97; digits := digits || (code - 97);
      ELSIF code BETWEEN 65 AND 90 THEN sizes := sizes || 26; starts := starts || 65; digits := digits || (code - 65);
      ELSIF code > 127 THEN sizes := sizes || 26; starts := starts || 97; digits := digits || (code % 26);
      ELSE CONTINUE;
      END IF;
      places := places || i;
    END LOOP;
    m := cardinality(places);
    IF m = 0 THEN RETURN value; END IF;
    half := m / 2;
    was_zero := digits[1] = 0;
    LOOP
      FOR pass IN 0..8 LOOP
        -- Rounds 4 to 1 backwards, the step, rounds 1 to 4 forwards.
        IF pass = 4 THEN
          digest := sha256(outer_block || sha256(inner_block || convert_to('step:' || form, 'UTF8')));
          n := m;
          IF m = 1 THEN digits[1] := (digits[1] + 1 + get_byte(digest, 0) % (sizes[1] - 1)) % sizes[1];
          ELSE
            LOOP
              digits[n] := (digits[n] + 1) % sizes[n];
              EXIT WHEN digits[n] <> 0 OR n = 1;
              n := n - 1;
            END LOOP;
          END IF;
          CONTINUE;
        END IF;
        step := CASE WHEN pass < 4 THEN 4 - pass ELSE pass - 4 END;
        IF step % 2 = 1 THEN low := 1; high := half; ELSE low := half + 1; high := m; END IF;
        CONTINUE WHEN low > high;
        digest := sha256(outer_block || sha256(inner_block || convert_to('round:' || step || ':' || form || ':' ||
          array_to_string(CASE WHEN step % 2 = 1 THEN digits[half + 1:m] ELSE digits[1:half] END, ','), 'UTF8')));
        FOR j IN low..high LOOP
          n := (j - low) % 16;
          IF n = 0 AND j > low THEN digest := sha256(outer_block || sha256(inner_block || digest)); END IF;
          code := (get_byte(digest, 2 * n) * 256 + get_byte(digest, 2 * n + 1)) % sizes[j];
          digits[j] := (digits[j] + CASE WHEN pass < 4 THEN sizes[j] - code ELSE code END) % sizes[j];
        END LOOP;
      END LOOP;
      result := value;
      FOR j IN 1..m LOOP
        result := overlay(result PLACING CASE WHEN kind = 'hex' THEN to_hex(digits[j]) ELSE chr(starts[j] + digits[j]) END FROM places[j] FOR 1);
      END LOOP;
      EXIT WHEN kind <> 'number' OR ((m = 1 OR (digits[1] = 0) = was_zero) AND (most IS NULL OR abs(result::numeric) <= most));
      tries := tries + 1;
      IF tries > 1000 THEN RAISE EXCEPTION 'a number cannot be masked within the range of its type'; END IF;
    END LOOP;
    RETURN result;
  END $f$;

  CREATE FUNCTION ${schema}.branchgate_stretch(digest bytea, inner_block bytea, outer_block bytea, length int)
  RETURNS text LANGUAGE sql ${OWN_PATH} AS $f$
    SELECT left(string_agg(translate(encode(sha256(outer_block || sha256(inner_block || convert_to(n || ':', 'UTF8') || digest)),
      'hex'), '0123456789abcdef', '${ALPHABET}'), '' ORDER BY n), length)
    FROM generate_series(0, (length - 1) / 64) AS n
  $f$;

  CREATE FUNCTION ${schema}.branchgate_json(value jsonb, path text[], inner_block bytea, outer_block bytea)
  RETURNS jsonb LANGUAGE plpgsql ${OWN_PATH} AS $f$
  DECLARE
    kind text := jsonb_typeof(value); head text := path[1]; leaf text;
  BEGIN
    IF kind = 'array' THEN
      IF head = '*' THEN path := path[2:]; END IF;
      RETURN (SELECT coalesce(jsonb_agg(${schema}.branchgate_json(element, path, inner_block, outer_block) ORDER BY n), '[]')
        FROM jsonb_array_elements(value) WITH ORDINALITY AS elements (element, n));
    ELSIF kind = 'object' AND head IS NULL THEN
      RETURN (SELECT coalesce(jsonb_object_agg(key, ${schema}.branchgate_json(member, path, inner_block, outer_block)), '{}')
        FROM jsonb_each(value) AS members (key, member));
    ELSIF kind = 'object' AND value ? head THEN
      RETURN value || jsonb_build_object(head, ${schema}.branchgate_json(value -> head, path[2:], inner_block, outer_block));
    ELSIF head IS NOT NULL OR kind IS NULL OR kind = 'null' THEN
      RETURN value;
    ELSIF kind = 'boolean' THEN
      RETURN 'null';
    END IF;
    leaf := value #>> '{}';
    IF kind = 'number' THEN
      RETURN to_jsonb(CASE WHEN leaf ~ '^-?[0-9]+(\\.[0-9]+)?$' THEN ${schema}.branchgate_permute(leaf, inner_block, outer_block, 'number', NULL) ELSE '0' END::numeric);
    END IF;
    RETURN to_jsonb(CASE WHEN leaf = '' THEN '' ELSE ${schema}.branchgate_stretch(
      sha256(outer_block || sha256(inner_block || convert_to('json:' || leaf, 'UTF8'))), inner_block, outer_block, greatest(length(leaf), 12)) END);
  END $f$;
`;

/** The kinds of values that a function can replace. Those that are left out take any. */
const TAKES: Partial<Record<MaskingRule['with'], readonly ValueKind[]>> = {
  hash: ['text', 'integer', 'numeric', 'uuid', 'bytea'],
  email: ['text'],
  name: ['text'],
  phone: ['text', 'integer', 'numeric'],
  date_shift: ['date', 'timestamp'],
  number_noise: ['integer', 'numeric', 'float'],
  text_redact: ['text'],
  json: ['json'],
};

/** Replace a column as a whole, also one of arrays. */
const OF_COLUMN: readonly MaskingRule['with'][] = ['null', 'constant', 'json', 'expression'];

/** Functions after which a value that could be replaced is another one. */
const REPLACES_ALL: readonly MaskingRule['with'][] = ['hash', 'email', 'name', 'phone', 'date_shift'];

/** @returns why the function cannot replace such a column; null if it can */
export function misfit(rule: MaskingRule, { kind, isArray, type, maxLength }: MaskedColumn): string | null {
  const kinds = TAKES[rule.with];
  if (kinds && (!kinds.includes(kind) || (isArray && OF_COLUMN.includes(rule.with))))
    return `${rule.with} does not apply to ${type}`;
  if (rule.with !== 'email' || rule.args?.domain === undefined || maxLength === null) return null;
  const needed = rule.args.domain.length + 1 + LOCAL_PART_MIN;
  if (maxLength >= needed) return null;
  return `${type} is too short for addresses at ${rule.args.domain}, which need ${needed} characters: keep the domain, name a shorter one, or use hash`;
}

const LARGEST: Record<string, string> = {
  int2: '32767',
  int4: '2147483647',
  int8: '9223372036854775807',
};

/** A collation that is not deterministic has no regular expressions, and takes other values for the same. */
const asText = (value: string) => `(${value}::pg_catalog.text COLLATE "C")`;

const clamp = (value: string, largest: string | null | undefined) =>
  largest ? `greatest(-${largest}, least(${largest}, ${value}))` : value;

const permute = (
  schema: FunctionSchema,
  text: string,
  kind: 'text' | 'number' | 'hex',
  most: string | null = null,
) => `${schema}.branchgate_permute(${text}, ${INNER}, ${OUTER}, '${kind}', ${most ?? 'NULL'})`;

function permuted(schema: FunctionSchema, text: string, { kind, base, largest }: MaskedColumn): string {
  if (kind === 'text') return permute(schema, text, 'text');
  // NaN and infinity have no digits.
  return `CASE WHEN ${text} ~ '^-?[0-9.]+$' THEN ${permute(schema, text, 'number', LARGEST[base] ?? largest)} ELSE ${text} END`;
}

function hashed(schema: FunctionSchema, value: string, column: MaskedColumn): string {
  const text = asText(value);
  const digest = hmac('hash', text);
  if (column.kind === 'uuid')
    return `pg_catalog.overlay(pg_catalog.overlay(pg_catalog.left(pg_catalog.encode(${digest}, 'hex'), 32), '4', 13), '8', 17)`;
  if (column.kind === 'bytea')
    return `pg_catalog.decode(CASE WHEN pg_catalog.length(${value}) < ${PERMUTED_BELOW} THEN ${permute(schema, `pg_catalog.encode(${value}, 'hex')`, 'hex')}
      ELSE pg_catalog.translate(${schema}.branchgate_stretch(${digest}, ${INNER}, ${OUTER}, 2 * pg_catalog.length(${value})), '${ALPHABET}', '0123456789abcdef') END, 'hex')`;
  if (column.kind !== 'text') return permuted(schema, text, column);
  return `CASE WHEN pg_catalog.length(${text}) < ${PERMUTED_BELOW} THEN ${permuted(schema, text, column)}
    ELSE ${schema}.branchgate_stretch(${digest}, ${INNER}, ${OUTER}, pg_catalog.length(${text})) END`;
}

/** Letters of the local part of an address, of sixteen each, unless the column is too short. */
const LOCAL_PART = 20;
/** Fewer would often coincide. */
const LOCAL_PART_MIN = 12;

function email(
  schema: FunctionSchema,
  value: string,
  { maxLength }: MaskedColumn,
  domain: string | undefined,
): string {
  const text = asText(value);
  const at = `pg_catalog.split_part(${text}, '@', -1)`;
  const kept = domain === undefined ? at : literal(domain);
  const drawn = (length: number) =>
    `pg_catalog.translate(pg_catalog.left(pg_catalog.encode(${hmac('email', text)}, 'hex'), ${length}), '0123456789abcdef', '${ALPHABET}')`;
  const short = `pg_catalog.left(${text}, -1 - pg_catalog.length(${at}))`;
  // Beside a long domain that is kept, a short column has room for the characters that it had.
  const local =
    maxLength === null || domain !== undefined
      ? drawn(Math.min(LOCAL_PART, (maxLength ?? Number.POSITIVE_INFINITY) - 1 - (domain?.length ?? 0)))
      : `CASE WHEN pg_catalog.length(${at}) > ${maxLength - 1 - LOCAL_PART} THEN ${permute(schema, short, 'text')} ELSE ${drawn(LOCAL_PART)} END`;
  const plain = {
    name: '',
    type: 'text',
    kind: 'text',
    isArray: false,
    base: 'text',
    maxLength,
    largest: null,
  } as const;
  return `CASE WHEN ${text} ~ '.@.' THEN ${local} || '@' || ${kept} ELSE ${hashed(schema, text, plain)} END`;
}

/**
 * A first name, and a last name if the text has two words. A name that would stay gets the first name half the
 * list further, which has another initial.
 */
function named(text: string, maxLength: number | null): string {
  const cut = (name: string) => (maxLength === null ? name : `pg_catalog.left(${name}, ${maxLength})`);
  const first = (n: string) => `(${arrayOf(FIRST_NAMES)})[1 + ${n} % 64]`;
  const last = `(${arrayOf(LAST_NAMES)})[1 + pg_catalog.get_byte(digest, 1) % 64]`;
  // The column is named in the innermost query alone: the others can have a column of that name.
  return `(SELECT ${cut(`(CASE WHEN ${cut(`(${first('n')} || rest)`)} = value THEN ${first('(n + 32)')} ELSE ${first('n')} END || rest)`)} FROM (
      SELECT value, pg_catalog.get_byte(digest, 0) AS n, CASE WHEN pg_catalog.btrim(value) ~ '\\s' THEN ' ' || ${last} ELSE '' END AS rest
      FROM (SELECT ${text} AS value, ${hmac('name', text)} AS digest OFFSET 0) AS hashed OFFSET 0) AS named)`;
}

/** From 1 to `most` or from -1 to -`most`, never 0. */
const shift = (digest: string, most: number) =>
  `(SELECT CASE WHEN n < ${most} THEN n - ${most} ELSE n - ${most} + 1 END FROM (SELECT (${numberOf(digest)} % ${2 * most})::int4 AS n) AS drawn)`;

function replacement(schema: FunctionSchema, rule: MaskingRule, value: string, column: MaskedColumn): string {
  const text = asText(value);
  switch (rule.with) {
    case 'null':
      return 'NULL';
    case 'constant':
      return literal(String(rule.args.value));
    case 'expression':
      return `(${rule.args.sql})`;
    case 'hash':
      return hashed(schema, value, column);
    case 'email':
      return email(schema, value, column, rule.args?.domain);
    case 'phone':
      return permuted(schema, text, column);
    case 'name':
      return named(text, column.maxLength);
    case 'date_shift': {
      const { days = 30, per } = rule.args ?? {};
      const digest = hmac(
        'date',
        `coalesce(${per === undefined ? text : `${identifier(per)}::pg_catalog.text`}, '')`,
      );
      const moved = `${value} + ${shift(digest, days)} * ${column.kind === 'date' ? '1' : "interval '1 day'"}`;
      return `CASE WHEN pg_catalog.isfinite(${value}) THEN ${moved} ELSE ${value} END`;
    }
    case 'number_noise': {
      const { percent = 10 } = rule.args ?? {};
      // In steps of a hundredth of a percent.
      const noise = shift(hmac('noise', text), percent * 100);
      if (column.kind === 'float')
        return `CASE WHEN ${text} ~ '[0-9]' THEN ${value} + ${value} * ${noise} / 10000.0 ELSE ${value} END`;
      const noisy = `${value}::numeric + pg_catalog.round(${value}::numeric * ${noise} / 10000, ${column.kind === 'integer' ? '0' : `pg_catalog.scale(${value})`})`;
      return `CASE WHEN ${text} ~ '[0-9]' THEN ${clamp(noisy, LARGEST[column.base] ?? column.largest)} ELSE ${value} END`;
    }
    case 'text_redact':
      return `pg_catalog.regexp_replace(pg_catalog.translate(${text}, '123456789', '000000000') COLLATE "C", '[^0\\s!-/:-@[-\`{-~]', 'x', 'g')`;
    case 'json':
      return rule.args.paths.reduce(
        (document, path) =>
          `${schema}.branchgate_json(${document}, ${literal(
            `{${pathOf(path)
              .map((key) => JSON.stringify(key))
              .join(',')}}`,
          )}::text[], ${INNER}, ${OUTER})`,
        `${value}::pg_catalog.jsonb`,
      );
  }
}

/** `$.a.b[*].c` as keys; `*` stands for all elements. */
const pathOf = (path: string) =>
  [...path.matchAll(/\.([^.[]+)|\[(\*)\]/g)].map(([, key, all]) => key ?? all ?? '');

/**
 * The new value of a column, as an expression over the row. `$1` and `$2` are the blocks of the key, if they
 * occur.
 */
export function maskedValue(schema: FunctionSchema, rule: MaskingRule, column: MaskedColumn): string {
  const name = identifier(column.name);
  if (!column.isArray || OF_COLUMN.includes(rule.with)) {
    const value = replacement(schema, rule, name, column);
    const isTotal = OF_COLUMN.includes(rule.with) && rule.with !== 'json';
    return isTotal
      ? `(${value})::${column.type}`
      : `CASE WHEN ${name} IS NULL THEN NULL ELSE (${value})::${column.type} END`;
  }
  const element = `CASE WHEN element IS NULL THEN NULL ELSE (${replacement(schema, rule, 'element', column)})::pg_catalog.text END`;
  return `CASE WHEN ${name} IS NULL THEN NULL ELSE (SELECT coalesce(pg_catalog.array_agg(${element} ORDER BY n), '{}')
    FROM pg_catalog.unnest(${name}) WITH ORDINALITY AS elements (element, n))::${column.type} END`;
}

/**
 * Whether a row still has its value although the rule promises that none stays. Not of texts without letter
 * and digit, empty lists and bytes, and infinite dates: there is nothing to replace.
 */
export function survives(rule: MaskingRule, { name, kind, isArray }: MaskedColumn): string | null {
  const before = `old.${identifier(name)}`;
  const after = `new.${identifier(name)}`;
  if (rule.with === 'null') return `${after} IS NOT NULL`;
  if (!REPLACES_ALL.includes(rule.with)) return null;
  const text = isArray ? `(pg_catalog.array_to_string(${before}, '') COLLATE "C")` : asText(before);
  // Every value of bytes begins with \x.
  const replaced = kind === 'bytea' ? '[0-9a-f]' : '[0-9A-Za-z]|[^\\x01-\\x7f]';
  const finite =
    kind === 'date' || kind === 'timestamp' || kind === 'numeric' ? ` AND ${text} !~* 'infinity|nan'` : '';
  return `(${asText(before)} = ${asText(after)} AND ${text} ~ '${replaced}'${finite})`;
}

export const usesKey = (expression: string): boolean => expression.includes(INNER);
