import type { MaskingRule } from '../../shared/masking.ts';
import { type MaskedColumn, misfit, type ValueKind } from './functions.ts';

/** What columns with personal data are usually called. The words of a name are separated by `_`. */
const NAMES: readonly (readonly [pattern: RegExp, reason: string, kinds?: readonly ValueKind[]])[] = [
  [/(?:^|_)e?_?mails?\d*(?:_|$)/, 'its name says e-mail'],
  [/(?:^|_)(?:phone|telephone|tel|mobile|cell|fax|msisdn)s?\d*(?:_|$)/, 'its name says phone number'],
  [
    /(?:^|_)(?:first|last|sur|full|given|family|middle|maiden|nick|birth|legal|display|contact|customer|person|user|employee|patient|account_holder|card_holder)_?names?(?:_|$)/,
    'its name says name of a person',
    ['text', 'json', 'other'],
  ],
  [/(?:^|_)(?:surname|forename|username|login)(?:_|$)/, 'its name says name of a person', ['text', 'other']],
  [/(?:^|_)(?:address|street|postcode|postal_code|zip|zipcode|zip_code)\d*(?:_|$)/, 'its name says address'],
  [
    /(?:^|_)(?:dob|birthday|birthdate|birth_date|date_of_birth|born|born_on|born_at)(?:_|$)/,
    'its name says date of birth',
  ],
  [
    /(?:^|_)(?:ssn|sin|nin|national_id|passport|passport_no|tax_id|vat_id|driver_license|license_plate)(?:_|$)/,
    'its name says identity number',
  ],
  [
    /(?:^|_)(?:iban|bic|credit_card|card_number|card_no|cc_number|pan|bank_account|account_number)(?:_|$)/,
    'its name says bank account or card',
  ],
  [/(?:^|_)(?:password|passwd|pwd|passwordhash|secret|api_key|apikey|token)(?:_|$)/, 'its name says secret'],
  [
    /(?:^|_)(?:ip|ip_address|ip_addr|remote_addr|client_ip|user_agent)(?:_|$)/,
    'its name says address of a computer',
  ],
  [/(?:^|_)(?:latitude|longitude|lat|lng|geo|geolocation)(?:_|$)/, 'its name says position'],
  [
    /(?:^|_)(?:gender|sex|religion|ethnicity|nationality|diagnosis|salary)(?:_|$)/,
    'its name says trait of a person',
  ],
];

const ALWAYS_PERSONAL: Record<string, string> = {
  inet: 'its type is an address of a computer',
  cidr: 'its type is an address of a computer',
  macaddr: 'its type is an address of a computer',
};

/** Flags and counts of something personal are not personal, nor is when it happened. */
const ABOUT =
  /^(?:is|has|can|num|count|n)_|_(?:count|at|verified|confirmed|enabled|id|type|status|version|format)$/;

const words = (name: string) =>
  name
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1_$2')
    .replaceAll(/[-\s.]/g, '_')
    .toLowerCase();

interface NamedColumn {
  name: string;
  base: string;
  kind: ValueKind;
}

/** Reasons of columns beside which a name is that of a person. */
const OF_PERSON = /e-mail|phone|name of a person|date of birth|identity number|trait/;

/**
 * @param columns of its table
 * @returns why a column looks personal by its name, its type and the columns beside it; null if it does not
 */
export function looksPersonal(column: NamedColumn, columns: readonly NamedColumn[]): string | null {
  const reason = reasonOf(column);
  if (reason !== null || column.kind !== 'text' || words(column.name) !== 'name') return reason;
  const isOfPerson = columns.some((other) => OF_PERSON.test(reasonOf(other) ?? ''));
  return isOfPerson ? 'beside other personal columns, its name says name of a person' : null;
}

function reasonOf({ name, base, kind }: NamedColumn): string | null {
  const ofType = ALWAYS_PERSONAL[base];
  if (ofType) return ofType;
  const text = words(name);
  if (base === 'bool' || (ABOUT.test(text) && !/^(?:national|tax|vat)_id$|^born_at$/.test(text))) return null;
  const found = NAMES.find(
    ([pattern, , kinds]) => pattern.test(text) && (kinds === undefined || kinds.includes(kind)),
  );
  return found?.[1] ?? null;
}

/** Forms of values, as SQL patterns, and what they say. Those of a column count if several values have it. */
export const VALUE_FORMS: readonly (readonly [pattern: string, reason: string])[] = [
  ['[^@\\s]+@[^@\\s]+\\.[a-zA-Z]{2,}', 'its values look like e-mail addresses'],
  ['^\\+?[0-9][0-9 ()/.-]{7,18}[0-9]$', 'its values look like phone numbers'],
  ['^[A-Z]{2}[0-9]{2} ?([A-Z0-9]{4} ?){2,7}[A-Z0-9]{1,4}$', 'its values look like bank accounts'],
];

/** The function for what a reason says, where it fits the type of the column. */
const FUNCTION_OF: readonly (readonly [reason: RegExp, name: 'email' | 'name' | 'phone' | 'date_shift'])[] = [
  [/e-mail/, 'email'],
  [/phone/, 'phone'],
  [/name of a person/, 'name'],
  [/date of birth/, 'date_shift'],
];

/** What replaces any value of a kind. */
const FALLBACKS = ['hash', 'date_shift', 'number_noise', 'null'] as const;

/** A function that fits a column that looks personal for this reason. */
export function suggestedFunction(
  column: MaskedColumn & { notNull: boolean },
  reason: string,
): MaskingRule['with'] {
  const wanted = FUNCTION_OF.filter(([pattern]) => pattern.test(reason)).map(([, name]) => name);
  const fits = (name: (typeof FALLBACKS)[number] | (typeof wanted)[number]) =>
    misfit({ table: '', column: column.name, with: name }, column) === null;
  const usable = [...wanted, ...FALLBACKS].filter((name) => name !== 'null' || !column.notNull);
  return usable.find(fits) ?? 'constant';
}
