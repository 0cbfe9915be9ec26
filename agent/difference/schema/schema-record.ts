/** One object that differs. `added` and `changed`: as this side has it; `dropped`: only the other side has it. */
export interface SchemaChange {
  kind: string;
  /** Its name with its schema, as in SQL. */
  identity: string;
  change: 'added' | 'changed' | 'dropped';
  detail?: string;
}

/** What distinguishes the schema of this side from that of the other side. */
export interface SchemaDifference {
  changes: SchemaChange[];
  /** Bring the other side here, one after the other. */
  statements: string[];
  /** Differences without a statement, and what could not be read. */
  not_modelled: string[];
}

/** Runs a query in the snapshot of one side, with the values of `pg`'s default types. */
export type CatalogQuery = (text: string, values?: unknown[]) => Promise<{ rows: Record<string, unknown>[] }>;
