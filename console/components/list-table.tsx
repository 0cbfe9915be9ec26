import { type ReactNode, useEffect, useRef } from 'react';

interface ListTableProps {
  columns: readonly string[];
  /** Columns with numbers, which stand on the right. */
  numbers?: readonly string[];
  /** The last cell of each row has buttons. */
  hasActions?: boolean;
  children: ReactNode;
}

/** A table of records; `children` are its rows. */
export function ListTable({ columns, numbers = [], hasActions = true, children }: ListTableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  // On a narrow screen each row is a block, and the styles put the name of the column before each value.
  useEffect(() => {
    for (const row of body.current?.rows ?? [])
      for (const cell of row.cells) cell.dataset.label = columns[cell.cellIndex] ?? '';
  });
  return (
    <div className="table-scroll">
      <table className="table">
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column} scope="col" className={numbers.includes(column) ? 'number' : undefined}>
                {column}
              </th>
            ))}
            {hasActions && (
              <th scope="col">
                <span className="visually-hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}
