import { plural } from './plural.ts';

export const SQL_TEXT = {
  name: (branch: string) => `SQL on ${branch}`,
  about: 'Runs one statement in a transaction of its own, for at most 5 seconds.',
  editor: 'Statement',
  example:
    "select table_schema, table_name, table_type\nfrom information_schema.tables\nwhere table_schema = 'public'\norder by 1, 2",
  run: 'Run',
  roles: { read_only: 'Read only', read_write: 'Read and write' },
  readOnly: 'Read only here: change main by migrations, or a branch of it.',
  result: 'Result',
  outcome: (command: string, rows: number) => `${command} ${plural(rows, 'row')}`.trim(),
  more: (rows: number) => `Only the first ${plural(rows, 'row')} are shown. Add a limit or conditions.`,
} as const;
