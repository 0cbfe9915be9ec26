import type { Command } from 'commander';

/** What of a source a command takes. */
export interface SourceOptions {
  table?: string[];
  schema?: string[];
  excludeSchema?: string[];
  excludeTable?: string[];
}

export const withSourceOptions = (command: Command): Command =>
  command
    .option('--table <table...>', 'only these tables, with their schema unless it is public')
    .option('--schema <schema...>', 'only what these schemas have')
    .option('--exclude-schema <schema...>', 'leave these schemas alone, with all that depends on them')
    .option('--exclude-table <table...>', 'leave these tables alone, with all that depends on them');

/** The fields of a request. */
export const sourceFields = ({ table, schema, excludeSchema, excludeTable }: SourceOptions) => ({
  ...(table && { tables: table }),
  ...(schema && { schemas: schema }),
  ...(excludeSchema && { exclude_schemas: excludeSchema }),
  ...(excludeTable && { exclude_tables: excludeTable }),
});
