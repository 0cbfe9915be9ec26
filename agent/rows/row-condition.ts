import type { RowId, Scalar } from '../../shared/protocol/tables.ts';
import { identifier } from '../postgres/connect.ts';
import { HostError, ofParameter } from '../servers/host-error.ts';
import { inputOf, parameterOf } from './cells.ts';
import { columnOf, type TableDescription } from './describe-table.ts';
import type { KeyOperators } from './key-operators.ts';

const notUnique = () =>
  new HostError('KEY_NOT_UNIQUE', "these columns are not the table's key", { path: 'primary_key' });

/**
 * SQL condition that is true for one row of the table `t`, with the values of its key as parameters from $1 on.
 * @param named columns of the key
 * @throws HostError KEY_NOT_UNIQUE
 */
export function rowCondition(table: TableDescription, operators: KeyOperators, named: readonly string[]) {
  const key = table.keys.find(
    ({ columns }) => columns.length === named.length && columns.every(({ name }) => named.includes(name)),
  );
  if (!key) throw notUnique();
  const columns = named.map((name) => columnOf(table, name));
  const conditions = columns.map((column, index) => {
    const part = key.columns.find(({ name }) => name === column.name);
    const equal = operators.get(part?.operator_class ?? '')?.equal;
    // Its extension was dropped after the table was described, and the index with it.
    if (!equal) throw notUnique();
    // Operators for all enums, for instance, do not accept a domain over one.
    return `t.${identifier(column.name)}::${column.base_type} ${equal} ${parameterOf(column, index + 1, column.base_type)}`;
  });
  return {
    isRow: conditions.join(' AND '),
    /**
     * @param path of the id in the call
     * @throws HostError INVALID_CALL
     */
    parameters(id: RowId, path: string): (string | null)[] {
      if (id.length !== columns.length)
        throw new HostError('INVALID_CALL', 'an id has one value for each column of the key', { path });
      return ofParameter(path, () => columns.map((column, index) => inputOf(column, id[index] as Scalar)));
    },
  };
}
