import type { MaskingRule } from '../../shared/masking.ts';
import { type MaskedColumn, misfit, type ValueKind } from './functions.ts';

interface Reason {
  /** A function for what the reason says, where it fits the type of the column. */
  with?: 'email' | 'name' | 'phone' | 'date_shift';
  /** Such a column shows that a column `name` of its table has names of persons. */
  isOfPerson?: true;
}

/** What a column that looks personal is reported with. */
const REASONS = {
  'its name says e-mail': { with: 'email', isOfPerson: true },
  'its name says phone number': { with: 'phone', isOfPerson: true },
  'its name says name of a person': { with: 'name', isOfPerson: true },
  'its name says address': {},
  'its name says date of birth': { with: 'date_shift', isOfPerson: true },
  'its name says identity number': { isOfPerson: true },
  'its name says bank account or card': {},
  'its name says secret': {},
  'its name says address of a computer': {},
  'its name says position': {},
  'its name says trait of a person': { isOfPerson: true },
  'its type is an address of a computer': {},
  'other columns of the table are personal': { with: 'name' },
  'its values look like e-mail addresses': { with: 'email' },
  'its values look like phone numbers': { with: 'phone' },
  'its values look like bank accounts': {},
} as const satisfies Record<string, Reason>;

type ReasonText = keyof typeof REASONS;

const reasonFor = (text: string): Reason => (REASONS as Partial<Record<string, Reason>>)[text] ?? {};

/** What columns with personal data are usually called. The words of a name are separated by `_`. */
const NAMES: readonly (readonly [pattern: RegExp, reason: ReasonText, kinds?: readonly ValueKind[]])[] = [
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

const ALWAYS_PERSONAL: Partial<Record<string, ReasonText>> = {
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

/**
 * @param columns of its table
 * @returns why a column looks personal by its name, its type and the other columns; null if it does not
 */
export function looksPersonal(column: NamedColumn, columns: readonly NamedColumn[]): ReasonText | null {
  const reason = reasonOf(column);
  if (reason !== null || column.kind !== 'text' || words(column.name) !== 'name') return reason;
  const isOfPerson = columns.some((other) => reasonFor(reasonOf(other) ?? '').isOfPerson);
  return isOfPerson ? 'other columns of the table are personal' : null;
}

function reasonOf({ name, base, kind }: NamedColumn): ReasonText | null {
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
export const VALUE_FORMS: readonly (readonly [pattern: string, reason: ReasonText])[] = [
  ['[^@\\s]+@[^@\\s]+\\.[a-zA-Z]{2,}', 'its values look like e-mail addresses'],
  ['^\\+?[0-9][0-9 ()/.-]{7,18}[0-9]$', 'its values look like phone numbers'],
  ['^[A-Z]{2}[0-9]{2} ?([A-Z0-9]{4} ?){2,7}[A-Z0-9]{1,4}$', 'its values look like bank accounts'],
];

/** What replaces any value of a kind. */
const FALLBACKS = ['hash', 'date_shift', 'number_noise', 'null'] as const;

/** A function that fits a column that looks personal for this reason. */
export function suggestedFunction(
  column: MaskedColumn & { notNull: boolean },
  reason: string,
): MaskingRule['with'] {
  const wanted = reasonFor(reason).with;
  const usable = [...(wanted ? [wanted] : []), ...FALLBACKS].filter(
    (name) => name !== 'null' || !column.notNull,
  );
  const fits = (name: (typeof usable)[number]) =>
    misfit({ table: '', column: column.name, with: name }, column) === null;
  return usable.find(fits) ?? 'constant';
}
