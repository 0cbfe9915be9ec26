import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import type { GridColumn } from './cell.tsx';
import { type Filter, OPERATORS } from './rows.ts';

const OPERATOR_NAMES = {
  eq: '=',
  ne: '≠',
  lt: '<',
  le: '≤',
  gt: '>',
  ge: '≥',
  contains: 'contains',
  is_null: 'is NULL',
  is_not_null: 'is not NULL',
} as const;

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
      aria-label="Filter rows"
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
          title="Remove this filter"
          onClick={() => onChange(filters.filter((_, at) => at !== index))}
        >
          <code>
            {filter.column} {OPERATOR_NAMES[filter.operator]} {filter.value ?? ''}
          </code>
        </Button>
      ))}
      <select
        className="select mono"
        aria-label="Column"
        value={column}
        onChange={(event) => setColumn(event.target.value)}
      >
        {columns.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <select
        className="select"
        aria-label="Comparison"
        value={operator}
        onChange={(event) => setOperator(event.target.value as Filter['operator'])}
      >
        {OPERATORS.map((each) => (
          <option key={each} value={each}>
            {OPERATOR_NAMES[each]}
          </option>
        ))}
      </select>
      {needsValue && (
        <input
          className="input mono"
          aria-label="Value to compare with"
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
      )}
      <Button type="submit" compact>
        Filter
      </Button>
    </form>
  );
}
