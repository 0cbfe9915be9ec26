import { z } from 'zod';
import type { Schemas } from '../client/client.ts';
import { rehearse } from '../client/rehearsal.ts';
import { findBranch, projectOf } from './branches.ts';
import { data, from, project_id } from './fields.ts';
import { ADDS, type Tool, tool } from './tool.ts';

/** A statement that PostgreSQL refused; those after it were not run. */
export interface RefusedStatement {
  /** Its place in the list, from 1. */
  statement: number;
  message: string;
  /** Null if the session ended. */
  sqlstate: string | null;
}

/**
 * Runs statements one after the other in one session of the direct URL. Nothing but PostgreSQL reads them.
 * @returns null if PostgreSQL refused none
 */
export type RunStatements = (
  credentials: Schemas['Credentials'],
  statements: readonly string[],
  signal: AbortSignal,
) => Promise<RefusedStatement | null>;

/** Ends a rehearsal whose agent has forgotten it. */
const TTL_SECONDS = 3600;

/**
 * Only for transports that can connect to the databases, because no request of the API runs statements of the
 * owner.
 */
export const rehearseMigration = (runStatements: RunStatements): Tool =>
  tool({
    name: 'rehearse_migration',
    description:
      "Runs a migration with the owner's login on a copy of a branch, which is deleted afterwards. Reports its locks, rewritten tables, lost rows and the changes of the schema. The load of the source is not rehearsed.",
    effect: ADDS,
    hasContent: true,
    input: z.strictObject({
      project_id,
      from,
      data,
      statements: z
        .array(z.string().min(1))
        .min(1)
        .max(1000)
        .meta({
          description:
            'The SQL of the migration, sent one element after the other in one session. Several statements in one element are one transaction; `begin` and `commit` can be elements too. No commands of psql.',
          examples: [['alter table item add price int', 'create index concurrently on item (price)']],
        }),
    }),
    async run(context, { from, data: wanted, statements, ...input }) {
      const { client, signal } = context;
      const projectId = await projectOf(context, input.project_id);
      const source = await findBranch(context, projectId, from);
      const { rehearsal, result } = await rehearse(
        client,
        {
          projectId,
          data: wanted,
          ttlSeconds: TTL_SECONDS,
          ...(!source.is_default && { sourceId: source.id }),
        },
        {
          migrate: (credentials) => runStatements(credentials, statements, signal),
          hasFailed: (refused) => refused !== null,
        },
        // What concerns a person only: the branch is deleted when its lease ends.
        { signal, say: () => {} },
      );
      return { refused: result, ...rehearsal };
    },
  });
