import { z } from 'zod';
import { spelledDuration } from '../../shared/duration.ts';

type Issue = z.core.$ZodRawIssue;

/** Units by the ends of names. */
const UNITS: readonly (readonly [RegExp, string])[] = [
  [/_seconds$/, ' seconds'],
  [/_days$/, ' days'],
  [/_bytes$/, ' bytes'],
  [/_gib$/, ' GiB'],
  [/_ms$/, ' milliseconds'],
  [/_per_minute$/, ' a minute'],
];

/** A limit with the unit that the name of its field says. */
function limitOf(limit: number | bigint, path: readonly PropertyKey[]): string {
  const name = String(path.at(-1) ?? '');
  const unit = UNITS.find(([ending]) => ending.test(name))?.[1] ?? '';
  const spelled = name.endsWith('_seconds') ? spelledDuration(Number(limit)) : null;
  return `${limit}${unit}${spelled === null ? '' : ` (${spelled})`}`;
}

const COUNTED: Readonly<Record<string, string>> = { string: 'characters', array: 'entries', set: 'entries' };

function bound(issue: Issue, word: string, limit: number | bigint): string {
  const counted = COUNTED[String(issue.origin)];
  return counted
    ? `Must have ${word} ${limit} ${counted}.`
    : `Must be ${word} ${limitOf(limit, issue.path ?? [])}.`;
}

const EXPECTED: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'an object',
  record: 'an object',
};

const FORMATS: Readonly<Record<string, string>> = {
  uuid: 'a UUID',
  email: 'an e-mail address',
  url: 'a URL',
  datetime: 'a time such as 2026-01-31T12:00:00Z',
};

const REQUIRED = 'Is required.';

/** Names the forms that a value may have; a value that is missing is required. */
function demand({ input }: Issue, forms: readonly string[]): string | undefined {
  if (forms.length === 0) return input === undefined ? REQUIRED : undefined;
  const either = [...new Set(forms)].join(' or ');
  return input === undefined ? `Is required: ${either}.` : `Must be ${either}.`;
}

/** One sentence about an invalid value, for people who do not know the schema. */
export function invalidValue(issue: Issue): string | undefined {
  switch (issue.code) {
    case 'too_small':
      return bound(issue, issue.inclusive === false ? 'more than' : 'at least', issue.minimum);
    case 'too_big':
      return bound(issue, issue.inclusive === false ? 'less than' : 'at most', issue.maximum);
    case 'invalid_type':
      return issue.input === undefined ? REQUIRED : `Must be ${EXPECTED[issue.expected] ?? issue.expected}.`;
    case 'invalid_value':
      return demand(issue, issue.values.map(String));
    case 'invalid_format':
      return FORMATS[issue.format] && `Must be ${FORMATS[issue.format]}.`;
    case 'not_multiple_of':
      return `Must be a multiple of ${issue.divisor}.`;
    case 'invalid_union': {
      const messages = issue.errors
        .flatMap(([first]) => first?.message ?? [])
        .filter((one) => one !== REQUIRED);
      return demand(
        issue,
        messages.map((message) => message.replace(/^(?:Must be|Is required:) |\.$/g, '')),
      );
    }
    default:
      return undefined;
  }
}

// Messages of a schema itself come first.
z.config({ customError: invalidValue });
