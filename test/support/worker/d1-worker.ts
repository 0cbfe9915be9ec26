/** Calls of a D1 that come from outside of workerd. */
export interface D1Call {
  /** Name of the binding. */
  database: string;
  method: 'all' | 'raw' | 'batch' | 'exec';
  statements: { query: string; values: unknown[] }[];
}

async function run(d1: D1Database, { method, statements }: D1Call): Promise<unknown> {
  const [first] = statements;
  if (!first) throw new Error('there is no statement');
  if (method === 'exec') return d1.exec(first.query);
  const prepared = statements.map(({ query, values }) => d1.prepare(query).bind(...values));
  return method === 'batch' ? d1.batch(prepared) : prepared[0]?.[method]();
}

export default {
  async fetch(request, env) {
    const call = await request.json<D1Call>();
    try {
      return Response.json(await run(env[call.database] as D1Database, call));
    } catch (error) {
      return Response.json((error as Error).message, { status: 500 });
    }
  },
} satisfies ExportedHandler<Record<string, D1Database>>;
