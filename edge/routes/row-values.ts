import { z } from 'zod';
import { type Cell, Scalar } from '../../shared/protocol/tables.ts';

/** A value of a cell, as clients write and read it. */
export const Value = Scalar.nullable();
export const Values = z.record(z.string(), Value);

export const RowsQuery = z.strictObject({
  schema: z.string().default('public').meta({ description: 'The schema of the table.' }),
});

export const VALUES_EXPLAINED = `Values: integers up to 32 bits and floating-point numbers are JSON numbers (NaN, infinities and -0 are strings), booleans are JSON booleans, and \`bytea\` is base64. All other types are strings in PostgreSQL's text format, including \`bigint\`, \`numeric\`, \`json\`, \`jsonb\`, dates, arrays and ranges. A value that was read can be written back unchanged.`;

/** A row for clients, and the names of the columns whose values are truncated. */
export function namedRow(columns: readonly string[], cells: readonly Cell[]) {
  const truncated: string[] = [];
  const entries = columns.map((name, index): [string, Scalar | null] => {
    const cell = cells[index] ?? null;
    if (typeof cell !== 'object' || cell === null) return [name, cell];
    truncated.push(name);
    return [name, cell.cut];
  });
  return { row: Object.fromEntries(entries), truncated };
}
