import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { TABLES_TEXT } from '../../strings/tables.ts';
import type { GridColumn } from './cell.tsx';
import { type Filter, OPERATORS } from './rows.ts';

const WITHOUT_VALUE: readonly string[] = ['is_null', 'is_not_null'];

interface Props {
  columns: readonly GridColumn[];
  filters: readonly Filter[];
  onChange: (filters: Filter[]) => void;
}

/** Conditions that all shown rows meet. */
export function FilterBar({ columns, filters, onChange }: Props) {
  const [column, setColumn] = useState(columns[0]?.name ?? '');
  const [operator, setOperator] = useState<Filter['operator']>('eq');
  const [value, setValue] = useState('');
  const needsValue = !WITHOUT_VALUE.includes(operator);
  return (
    <form
      className="filter-bar"
      aria-label={TABLES_TEXT.filterRows}
      onSubmit={(event) => {
        event.preventDefault();
        onChange([...filters, { column, operator, ...(needsValue && { value }) }]);
        setValue('');
      }}
    >
      {filters.map((filter, index) => (
        <Button
          key={JSON.stringify(filter)}
          compact
          icon="close"
          title={TABLES_TEXT.dropFilter}
          onClick={() => onChange(filters.filter((_, at) => at !== index))}
        >
          <code>
            {filter.column} {TABLES_TEXT.operators[filter.operator]} {filter.value ?? ''}
          </code>
        </Button>
      ))}
      <select
        className="select mono"
        aria-label={TABLES_TEXT.column}
        value={column}
        onChange={(event) => setColumn(event.target.value)}
      >
        {columns.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <select
        className="select"
        aria-label={TABLES_TEXT.operator}
        value={operator}
        onChange={(event) => setOperator(event.target.value as Filter['operator'])}
      >
        {OPERATORS.map((each) => (
          <option key={each} value={each}>
            {TABLES_TEXT.operators[each]}
          </option>
        ))}
      </select>
      {needsValue && (
        <input
          className="input mono"
          aria-label={TABLES_TEXT.filterValue}
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
      )}
      <Button type="submit" compact>
        {TABLES_TEXT.addFilter}
      </Button>
    </form>
  );
}
