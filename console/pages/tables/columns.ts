/** A column as the API describes it. */
export interface GridColumn {
  name: string;
  /** What is shown instead of the name. */
  label?: string;
  type: string;
  nullable: boolean;
  is_primary_key: boolean;
  default?: string | null;
  identity?: 'always' | 'by_default' | null;
  generated?: 'stored' | 'virtual' | null;
  enum_values?: string[] | null;
}

const RIGHT = /^(?:smallint|integer|bigint|numeric|real|double precision|money)\b/;
const WIDTHS: readonly (readonly [RegExp, number])[] = [
  [/^boolean/, 96],
  [RIGHT, 128],
  [/^uuid/, 308],
  [/^timestamp/, 244],
  [/^(?:json|bytea|xml)|\[\]$/, 280],
  [/^date/, 124],
];
const WIDTH = 208;
const CHARACTER = 8;
const PADDING = 56;

/** Pixels of a column: those of its type, but at least those of its name. */
export const widthOf = ({ name, label = name, type }: GridColumn): number =>
  Math.max(WIDTHS.find(([form]) => form.test(type))?.[1] ?? WIDTH, (label.length + 2) * CHARACTER + PADDING);

export const isRightAligned = ({ type }: GridColumn): boolean => RIGHT.test(type) && !type.endsWith('[]');

/** Types whose values are better read and written in the panel. */
export const isLong = ({ type }: GridColumn): boolean => /^(?:json|jsonb|xml|bytea|text)\b|\[\]$/.test(type);

/** Columns whose value nobody can write. */
export const isFixed = ({ generated, identity }: GridColumn): boolean =>
  (generated ?? null) !== null || identity === 'always';

/** Types of which an empty text is a value. */
export const isText = ({ type }: GridColumn): boolean =>
  /^(?:text|character|citext|bpchar|name)\b(?!.*\[\])/.test(type);
