import { z } from 'zod';

const LABELS_MAX = 16;
const LABEL_BYTES_MAX = 63;

/** The first code point of each length in UTF-8, from the longest. */
const UTF8_LENGTHS = [
  [0x10000, 4],
  [0x800, 3],
  [0x80, 2],
  [0, 1],
] as const;

const utf8Length = (character: string) =>
  UTF8_LENGTHS.find(([first]) => (character.codePointAt(0) ?? 0) >= first)?.[1] ?? 0;

const isShort = (text: string) =>
  [...text].reduce((sum, character) => sum + utf8Length(character), 0) <= LABEL_BYTES_MAX;
const TOO_LONG = `must have at most ${LABEL_BYTES_MAX} bytes`;
const hasNoControls = (text: string) => !/\p{Cc}/u.test(text);
const CONTROLS = 'must not contain control characters';

/** A filter has the form `name=value`, so a name contains no `=`. */
const LabelName = z
  .string()
  .min(1)
  .regex(/^[^=]*$/, 'must not contain =')
  .refine(hasNoControls, CONTROLS)
  .refine(isShort, TOO_LONG);
const LabelValue = z.string().refine(hasNoControls, CONTROLS).refine(isShort, TOO_LONG);

/** Free texts by which a client finds its branches again. */
export const Labels = z
  .record(LabelName, LabelValue)
  .refine((labels) => Object.keys(labels).length <= LABELS_MAX, `must have at most ${LABELS_MAX} pairs`)
  .meta({
    description: `Up to ${LABELS_MAX} pairs of texts, each text of at most ${LABEL_BYTES_MAX} bytes.`,
    example: { pr: '7' },
  });
export type Labels = z.output<typeof Labels>;

/** `name=value`, as in the query of a list. */
export const LabelFilter = z
  .string()
  .transform((text, context) => {
    const [name = '', ...rest] = text.split('=');
    if (name !== '' && rest.length > 0) return { name, value: rest.join('=') };
    context.addIssue({ code: 'custom', message: 'must have the form name=value' });
    return z.NEVER;
  })
  .meta({ description: 'Only branches with this label, in the form `name=value`.', example: 'pr=7' });
