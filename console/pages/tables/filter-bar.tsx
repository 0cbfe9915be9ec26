import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { TEXT } from '../../strings.ts';
import type { GridColumn } from './columns.ts';
import { type Filter, OPERATORS } from './row-source.ts';

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
      aria-label={TEXT.tables.filterRows}
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
          title={TEXT.tables.dropFilter}
          onClick={() => onChange(filters.filter((_, at) => at !== index))}
        >
          <code>
            {filter.column} {TEXT.tables.operators[filter.operator]} {filter.value ?? ''}
          </code>
        </Button>
      ))}
      <select
        className="select mono"
        aria-label={TEXT.tables.column}
        value={column}
        onChange={(event) => setColumn(event.target.value)}
      >
        {columns.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <select
        className="select"
        aria-label={TEXT.tables.operator}
        value={operator}
        onChange={(event) => setOperator(event.target.value as Filter['operator'])}
      >
        {OPERATORS.map((each) => (
          <option key={each} value={each}>
            {TEXT.tables.operators[each]}
          </option>
        ))}
      </select>
      {needsValue && (
        <input
          className="input mono"
          aria-label={TEXT.tables.filterValue}
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
      )}
      <Button type="submit" compact>
        {TEXT.tables.addFilter}
      </Button>
    </form>
  );
}
