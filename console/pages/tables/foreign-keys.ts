import type { Filter, TableDetails } from './row-source.ts';
import type { Row } from './staged.ts';

/** Where the foreign key of a column leads; null if there is none, or if it has no value. */
export function referencedRow(details: TableDetails | undefined, row: Row, column: string) {
  const foreignKey = details?.foreign_keys.find(({ columns }) => columns.includes(column));
  if (!foreignKey) return null;
  const filters = foreignKey.columns.map((name, index): Filter | null => {
    const value = row[name];
    const referenced = foreignKey.referenced_columns[index];
    if (value === null || value === undefined || referenced === undefined) return null;
    return { column: referenced, operator: 'eq', value: String(value) };
  });
  if (filters.some((filter) => filter === null)) return null;
  return {
    schema: foreignKey.referenced_schema,
    table: foreignKey.referenced_table,
    filters: filters as Filter[],
  };
}
