import type { Session } from '../postgres/connect.ts';
import type { TableDescription } from './describe-table.ts';

/** Strategies of a B-tree's operators. */
const STRATEGIES = { equal: 3, at_least: 4 } as const;

/** By operator class. */
export type KeyOperators = ReadonlyMap<string, Record<keyof typeof STRATEGIES, string>>;

/**
 * Finds the operators with which the indexes of these tables' keys compare. By name, a tenant's own operator could be found
 * instead. To be called before any code of the tenant runs in the session. It is a statement of its own because most pages
 * need none, and because planning it as part of the description takes longer.
 */
export async function keyOperators(
  session: Session,
  tables: readonly TableDescription[],
): Promise<KeyOperators> {
  const keys = tables.flatMap((table) => table.keys);
  const classes = new Set(keys.flatMap(({ columns }) => columns.map((column) => column.operator_class)));
  const { rows } = await session.query<{ class: string; strategy: string; operator: string }>(
    `SELECT of_key.oid::text AS class, amopstrategy::text AS strategy, format('OPERATOR(%I.%s)', nspname, oprname) AS operator
     FROM pg_opclass AS of_key JOIN pg_amop ON amopfamily = opcfamily AND amoplefttype = opcintype
       AND amoprighttype = opcintype AND amopstrategy IN (${Object.values(STRATEGIES)})
     JOIN pg_operator ON pg_operator.oid = amopopr JOIN pg_namespace ON pg_namespace.oid = oprnamespace
     WHERE of_key.oid = ANY ($1::oid[])`,
    [[...classes]],
  );
  return new Map(
    [...classes].map((name) => {
      const found = (strategy: number) =>
        rows.find((row) => row.class === name && row.strategy === String(strategy))?.operator ?? '';
      return [name, { equal: found(STRATEGIES.equal), at_least: found(STRATEGIES.at_least) }];
    }),
  );
}
