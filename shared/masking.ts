import { z } from 'zod';
import { columnOf } from './masking-names.ts';

/** The masking policy of a project, as clients write it and as the host applies it. */

const MASKING_RULES_MAX = 1000;

const Name = z.string().min(1).max(63);

export const TableReference = z
  .string()
  .min(1)
  .max(127)
  .regex(/^[^.]{1,63}(?:\..{1,63})?$/, 'must be a table, or a schema and a table with a dot between them')
  .meta({ description: 'The table, with its schema unless that is `public`.', example: 'public.customer' });

const about = { table: TableReference, column: Name.meta({ example: 'email' }) };

/** Keys below the root, and `[*]` for all elements of an array. */
const JSON_PATH = /^\$(?:\.[^.[\]"*\s]+|\[\*\])+$/;

/**
 * Whether the text is one SQL expression that cannot end the parenthesis around it: no comment, no end of a
 * statement, no way to quote but `'…'` and `"…"`. It is the owner's SQL all the same: what is prevented is
 * that it changes what becomes of other columns, for instance by a condition that no row fulfils.
 */
export function isEnclosedExpression(sql: string): boolean {
  if (/[;$\\]|--|\/\*/.test(sql)) return false;
  const unquoted = sql.replaceAll(/'[^']*'|"[^"]*"/g, '0');
  if (/['"]/.test(unquoted) || unquoted.trim() === '') return false;
  let depth = 0;
  for (const character of unquoted) {
    if (character === '(') depth += 1;
    if (character === ')') depth -= 1;
    if (depth < 0 || (depth === 0 && character === ',')) return false;
  }
  return depth === 0;
}

/** How the values of one column are replaced. `docs/masking.md` states what each keeps and gives away. */
export const MaskingRule = z.discriminatedUnion('with', [
  z.strictObject({ ...about, with: z.literal('null') }),
  z.strictObject({
    ...about,
    with: z.literal('constant'),
    args: z.strictObject({ value: z.union([z.string().max(1000), z.number(), z.boolean()]) }),
  }),
  z.strictObject({ ...about, with: z.literal('hash') }),
  z.strictObject({
    ...about,
    with: z.literal('email'),
    args: z
      .strictObject({
        domain: z
          .string()
          .max(253)
          .regex(/^[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+$/, 'must be a domain')
          .optional()
          .meta({ description: 'Replaces the domain. Default: it is kept.', example: 'example.com' }),
      })
      .optional(),
  }),
  z.strictObject({ ...about, with: z.literal('name') }),
  z.strictObject({ ...about, with: z.literal('phone') }),
  z.strictObject({
    ...about,
    with: z.literal('date_shift'),
    args: z
      .strictObject({
        days: z.int().min(1).max(3650).optional().meta({ description: 'At most so many. Default: 30.' }),
        per: Name.optional().meta({
          description:
            'The column that identifies the person: all dates of a person shift alike. Default: dates of the same value do.',
          example: 'customer_id',
        }),
      })
      .optional(),
  }),
  z.strictObject({
    ...about,
    with: z.literal('number_noise'),
    args: z
      .strictObject({
        percent: z.int().min(1).max(100).optional().meta({ description: 'At most so much. Default: 10.' }),
      })
      .optional(),
  }),
  z.strictObject({ ...about, with: z.literal('text_redact') }),
  z.strictObject({
    ...about,
    with: z.literal('json'),
    args: z.strictObject({
      paths: z
        .array(z.string().max(500).regex(JSON_PATH, 'must be a path such as $.a.b or $.items[*].email'))
        .min(1)
        .max(50)
        .meta({ example: ['$.contact.email'] }),
    }),
  }),
  z.strictObject({
    ...about,
    with: z.literal('expression'),
    args: z.strictObject({
      sql: z
        .string()
        .max(2000)
        .refine(
          isEnclosedExpression,
          'must be one SQL expression, without comments, semicolons, backslashes and dollar signs',
        )
        .meta({ description: 'SQL over the columns of the table.', example: 'upper(left(name, 1))' }),
    }),
  }),
]);
export type MaskingRule = z.output<typeof MaskingRule>;

/** What becomes of columns that no rule names. */
export const UNLISTED = ['keep', 'refuse_likely_personal'] as const;

export const MaskingRules = z
  .array(MaskingRule)
  .max(MASKING_RULES_MAX)
  .superRefine((rules, context) => {
    const seen = new Set<string>();
    for (const [index, rule] of rules.entries()) {
      const column = columnOf(rule);
      if (seen.has(column))
        context.addIssue({
          code: 'custom',
          path: [index, 'column'],
          message: `${column} has another rule already`,
        });
      seen.add(column);
    }
  });

/**
 * What a branch has of its source. `none`: the schema alone, and the rows of the tables that were kept.
 */
export const BRANCH_DATA = ['full', 'masked', 'none'] as const;
export type BranchData = (typeof BRANCH_DATA)[number];

export const KEEP_TABLES_MAX = 200;

export const PREVIEW_ROWS_MAX = 20;

/** How long a masked snapshot that was made for a branch serves other branches too. */
export const MASKED_FRESH_SECONDS = 86_400;
