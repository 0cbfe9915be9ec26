import type { ReactNode } from 'react';
import { TEXT } from '../strings/common.ts';

interface ListTableProps {
  columns: readonly string[];
  /** Those with numbers, which stand on the right. */
  numbers?: readonly string[];
  /** The last cell of each row has buttons. */
  hasActions?: boolean;
  children: ReactNode;
}

/** A table of records; `children` are its rows. */
export const ListTable = ({ columns, numbers = [], hasActions = true, children }: ListTableProps) => (
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
              <span className="visually-hidden">{TEXT.actions.actions}</span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>{children}</tbody>
    </table>
  </div>
);
