/** Calls of the bindings of a tested Worker that come from outside of workerd. */
export type BindingCall = D1Call | ObjectCall;

interface D1Call {
  /** Name of the binding. */
  database: string;
  method: 'all' | 'raw' | 'batch' | 'exec';
  statements: { query: string; values: unknown[] }[];
}

interface ObjectCall {
  /** Name of the binding. */
  namespace: string;
  object: string;
  method: string;
  args: unknown[];
}

async function query(d1: D1Database, { method, statements }: D1Call): Promise<unknown> {
  const [first] = statements;
  if (!first) throw new Error('there is no statement');
  if (method === 'exec') return d1.exec(first.query);
  const prepared = statements.map(({ query, values }) => d1.prepare(query).bind(...values));
  return method === 'batch' ? d1.batch(prepared) : prepared[0]?.[method]();
}

function callObject(namespace: DurableObjectNamespace, { object, method, args }: ObjectCall) {
  const stub = namespace.getByName(object) as unknown as Record<string, (...args: unknown[]) => unknown>;
  return stub[method]?.(...args);
}

export default {
  async fetch(request, env) {
    const call = await request.json<BindingCall>();
    try {
      const result = await ('database' in call
        ? query(env[call.database] as D1Database, call)
        : callObject(env[call.namespace] as DurableObjectNamespace, call));
      return Response.json(result ?? null);
    } catch (error) {
      return Response.json((error as Error).message, { status: 500 });
    }
  },
} satisfies ExportedHandler<Record<string, D1Database | DurableObjectNamespace>>;
