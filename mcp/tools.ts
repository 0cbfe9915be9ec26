import { z } from 'zod';
import { differenceOf } from '../client/difference.ts';
import { dataOf } from '../client/response-error.ts';
import { tryStatements } from '../client/trial.ts';
import { BRANCH_ROLES, type BranchRole } from '../shared/branch/login.ts';
import { take } from '../shared/take.ts';
import { findBranch, MADE_BY, ownBranch, ownId, projectOf, shownBranch } from './branches.ts';
import { branch, data, from, project_id } from './fields.ts';
import { proposeChange } from './propose-change.ts';
import { ADDS, DESTROYS, READS, type Tool, type ToolContext, ToolError, tool } from './tool.ts';

const PROJECT = '/api/v1/projects/{project_id}';
const BRANCH = `${PROJECT}/branches/{branch_ref}` as const;

const PROJECTS_MAX = 100;
const ROWS_MAX = 100;
const TTL_SECONDS = 7200;

const BranchName = z.string().min(1).max(100);

const params = z
  .array(z.union([z.string(), z.number(), z.boolean(), z.null()]))
  .max(100)
  .default([])
  .meta({ description: 'Values of $1, $2, ….', examples: [[1, 'text', null]] });
const sql = z
  .string()
  .min(1)
  .meta({
    description:
      'One SQL statement, with parameters $1, $2, …, or several without parameters. All are one transaction.',
    examples: ['select count(*) from item where id > $1'],
  });

/** Takes a checkpoint of the branch. */
async function takeCheckpoint(
  context: ToolContext,
  path: { project_id: string; branch_ref: string },
  label: string | undefined,
) {
  const body = label === undefined ? {} : { label };
  const { signal } = context;
  return context.client.create(`${BRANCH}/checkpoints`, { params: { path }, body }, { signal });
}

/** A checkpoint before a change; null where the change is refused anyway. */
async function checkpointBefore(
  context: ToolContext,
  input: { project_id?: string | undefined; branch: string },
) {
  const project_id = await projectOf(context, input.project_id);
  const branch = await findBranch(context, project_id, input.branch);
  if (branch.is_default || branch.protected) return null;
  return takeCheckpoint(context, { project_id, branch_ref: branch.id }, undefined);
}

/** Runs a statement with a login of the branch. PostgreSQL decides what the login may do. */
async function runStatement(
  context: ToolContext,
  input: { project_id?: string | undefined; branch: string; sql: string; params: z.output<typeof params> },
  role: BranchRole,
) {
  const path = { project_id: await projectOf(context, input.project_id), branch_ref: input.branch };
  const body = { sql: input.sql, params: input.params, role };
  const { results, ...last } = await dataOf(
    context.client.api.POST(`${BRANCH}/query`, { params: { path }, body, signal: context.signal }),
  );
  return results ? { results: results.map(shortened) } : shortened(last);
}

/** What an agent can do about a branch that it must not change. @throws */
function pointToTrial(error: unknown): never {
  if (error instanceof Error && 'code' in error && error.code === 'BRANCH_PROTECTED')
    throw new ToolError(
      `${error.message} (BRANCH_PROTECTED)\nhint: try_sql shows what the statements would do, on a copy. To keep a change, use create_branch and execute.`,
    );
  throw error;
}

const shortened = <R extends { rows: unknown[]; has_more: boolean }>({ rows, has_more, ...result }: R) => ({
  ...result,
  rows: rows.slice(0, ROWS_MAX),
  has_more: has_more || rows.length > ROWS_MAX,
});

/** Every tool, for both transports. */
export const TOOLS: readonly Tool[] = [
  tool({
    name: 'list_projects',
    description:
      'Lists the projects that this credential can see. A project has one main database and branches.',
    effect: READS,
    input: z.strictObject({}),
    async run({ client }) {
      const projects = await take(client.all('/api/v1/projects'), PROJECTS_MAX);
      return projects.map(({ id, name, env, status, branch_count }) => ({
        id,
        name,
        env,
        status,
        branch_count,
      }));
    },
  }),
  tool({
    name: 'list_branches',
    description: 'Lists the branches of a project. `main` holds the data of the project and is protected.',
    effect: READS,
    input: z.strictObject({ project_id }),
    async run(context, input) {
      const path = { project_id: await projectOf(context, input.project_id) };
      const { branches } = await dataOf(context.client.api.GET(`${PROJECT}/branches`, { params: { path } }));
      return branches.map(shownBranch);
    },
  }),
  tool({
    name: 'create_branch',
    description:
      'Creates a branch: a copy of the content of another branch, in seconds. Use one for every change that you try out.',
    effect: ADDS,
    input: z.strictObject({
      project_id,
      branch_name: BranchName.optional().meta({
        description: 'Lowercase letters, digits, hyphens and underscores.',
        examples: ['agent-checkout'],
      }),
      name: BranchName.optional().meta({
        description: 'The same as branch_name.',
        examples: ['agent-checkout'],
      }),
      from,
      data,
      keep_tables: z
        .array(z.string())
        .optional()
        .meta({
          description: 'With data `none`: tables whose rows stay, with the schema unless that is public.',
          examples: [['country', 'shop.currency']],
        }),
      ttl_seconds: z
        .int()
        .min(60)
        .default(TTL_SECONDS)
        .meta({ description: 'Seconds until the branch expires.', examples: [TTL_SECONDS] }),
      labels: z
        .record(z.string(), z.string())
        .default({})
        .meta({ description: 'Further labels.', examples: [{ task: 'checkout' }] }),
    }),
    async run(
      context,
      {
        branch_name = '',
        name = branch_name,
        from,
        data: wanted,
        keep_tables,
        ttl_seconds,
        labels,
        ...input
      },
    ) {
      if (name === '') throw new ToolError('Give the name of the branch as branch_name.');
      if (branch_name !== '' && branch_name !== name)
        throw new ToolError('branch_name and name differ. Give one of them.');
      const path = { project_id: await projectOf(context, input.project_id) };
      const [source, own] = await Promise.all([findBranch(context, path.project_id, from), ownId(context)]);
      const body = {
        branch_name: name,
        ttl_seconds,
        labels: { ...labels, [MADE_BY]: own },
        ...(!source.is_default && { source_branch_id: source.id }),
        ...(wanted !== undefined && { data: wanted }),
        ...(keep_tables && { keep_tables }),
      };
      const { signal } = context;
      const init = { params: { path }, body };
      return shownBranch(await context.client.create(`${PROJECT}/branches`, init, { signal }));
    },
  }),
  tool({
    name: 'reset_branch',
    description:
      'Gives a branch that you made with create_branch the present content of the branch it was copied from. What it held is lost to you.',
    effect: DESTROYS,
    input: z.strictObject({ project_id, branch }),
    async run(context, input) {
      const projectId = await projectOf(context, input.project_id);
      const path = { project_id: projectId, branch_ref: await ownBranch(context, projectId, input.branch) };
      const { signal } = context;
      const init = { params: { path }, body: { to: 'parent' as const } };
      return shownBranch(await context.client.create(`${BRANCH}/reset`, init, { signal }));
    },
  }),
  tool({
    name: 'delete_branch',
    description: 'Deletes a branch that you made with create_branch.',
    effect: DESTROYS,
    input: z.strictObject({ project_id, branch }),
    async run(context, input) {
      const projectId = await projectOf(context, input.project_id);
      const path = { project_id: projectId, branch_ref: await ownBranch(context, projectId, input.branch) };
      return dataOf(context.client.api.DELETE(BRANCH, { params: { path } }));
    },
  }),
  tool({
    name: 'describe_schema',
    description:
      'Lists the tables and views of a branch with their columns and primary keys; with `table`, one of them in detail, with constraints and indexes.',
    effect: READS,
    hasContent: true,
    input: z.strictObject({
      project_id,
      branch,
      schema: z
        .string()
        .optional()
        .meta({
          description: 'Only this schema. With `table`, the default is public.',
          examples: ['public'],
        }),
      table: z
        .string()
        .optional()
        .meta({ description: 'Only this table, in detail.', examples: ['item'] }),
    }),
    async run(context, { schema, table, ...input }) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref: input.branch };
      const query = schema === undefined ? {} : { schema };
      const { api } = context.client;
      if (table === undefined) return dataOf(api.GET(`${BRANCH}/tables`, { params: { path, query } }));
      return dataOf(api.GET(`${BRANCH}/tables/{table}`, { params: { path: { ...path, table }, query } }));
    },
  }),
  tool({
    name: 'query',
    description: `Runs statements with the read-only login of a branch, for at most 5 seconds, and returns at most ${ROWS_MAX} rows of each. PostgreSQL refuses every write.`,
    effect: READS,
    hasContent: true,
    input: z.strictObject({ project_id, branch, sql, params }),
    run: (context, input) => runStatement(context, input, 'read_only'),
  }),
  tool({
    name: 'execute',
    description:
      'Runs statements with the read-write login of a branch, for at most 30 seconds. Refused on `main` and on protected branches: create a branch first, or use `try_sql` to see what the statements would do. Changing the schema takes the role `owner`.',
    effect: DESTROYS,
    hasContent: true,
    input: z.strictObject({
      project_id,
      branch,
      sql,
      params,
      role: z
        .enum(['read_write', 'owner'])
        .default('read_write')
        .meta({
          description: '`owner` can change the schema, for credentials that may view the connection URLs.',
          examples: ['owner'],
        }),
      checkpoint: z
        .boolean()
        .default(true)
        .meta({ description: 'Takes a checkpoint first, to which `undo` goes back.', examples: [false] }),
    }),
    async run(context, { role, checkpoint, ...input }) {
      const taken = checkpoint ? await checkpointBefore(context, input) : null;
      const result = await runStatement(context, input, role).catch(pointToTrial);
      return taken ? { ...result, checkpoint: taken } : result;
    },
  }),
  tool({
    name: 'try_sql',
    description:
      'Tries statements on a copy of a branch, `main` and protected branches too, that nobody else sees. Returns the results, the rows that differ by table, the changes of the schema, locks, rewritten tables and the time, for at most 30 seconds of statements. Nothing is changed, and nothing is left.',
    effect: READS,
    hasContent: true,
    input: z.strictObject({
      project_id,
      branch: branch.default('main').meta({
        description: 'Name or ID of the branch that is copied, for instance `main`.',
        examples: ['agent-checkout'],
      }),
      sql,
      params,
      role: z
        .enum(BRANCH_ROLES)
        .optional()
        .meta({
          description:
            '`owner` can change the schema. Default: `read_write`, or `read_only` for a credential that may not change rows.',
          examples: ['owner'],
        }),
    }),
    async run(context, { branch: branch_ref, sql, params, role, ...input }) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref };
      const { signal } = context;
      const { results, ...report } = await tryStatements(
        context.client,
        path,
        { sql, params, role },
        { signal },
      );
      return { ...report, results: results.map(shortened) };
    },
  }),
  tool({
    name: 'checkpoint',
    description:
      'Takes a checkpoint of a branch as it is now, to which `undo` goes back. The last 20 are kept. `execute` takes one by itself.',
    effect: ADDS,
    input: z.strictObject({
      project_id,
      branch,
      label: z
        .string()
        .min(1)
        .max(100)
        .optional()
        .meta({ description: 'What it is before.', examples: ['before adding prices'] }),
    }),
    async run(context, { label, ...input }) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref: input.branch };
      return takeCheckpoint(context, path, label);
    },
  }),
  tool({
    name: 'undo',
    description:
      'Takes a branch that you made with create_branch back to its last checkpoint, or further. Its sessions end. `safety_checkpoint_id` of the result, given as `to`, takes the undo back.',
    effect: DESTROYS,
    input: z.strictObject({
      project_id,
      branch,
      to: z
        .uuid()
        .optional()
        .meta({
          description: 'The ID of a checkpoint, or the safety_checkpoint_id of an undo.',
          examples: ['7c9e6679-7425-40de-944b-e07fc1f90ae7'],
        }),
      steps: z
        .int()
        .min(1)
        .max(20)
        .optional()
        .meta({
          description: 'Without `to`: how many checkpoints back, by default 1.',
          examples: [1],
        }),
    }),
    async run(context, { to, steps, ...input }) {
      const projectId = await projectOf(context, input.project_id);
      const path = { project_id: projectId, branch_ref: await ownBranch(context, projectId, input.branch) };
      const body = { ...(to !== undefined && { to }), ...(steps !== undefined && { steps }) };
      const { signal } = context;
      return context.client.create(`${BRANCH}/undo`, { params: { path }, body }, { signal });
    },
  }),
  tool({
    name: 'list_checkpoints',
    description: 'Lists the checkpoints of a branch, newest first.',
    effect: READS,
    input: z.strictObject({ project_id, branch }),
    async run(context, input) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref: input.branch };
      const { checkpoints } = await dataOf(
        context.client.api.GET(`${BRANCH}/checkpoints`, { params: { path } }),
      );
      return checkpoints;
    },
  }),
  tool({
    name: 'diff_branch',
    description:
      'Compares a branch with its parent, another branch or a snapshot: rows inserted, updated and deleted by table; with `schema`, also what differs in the schemas, with statements: `schema_proven` says that they were tried on a copy of the other schema and left no difference. A credential limited to branches cannot compare with `main`: compare with a new branch of it.',
    effect: READS,
    hasContent: true,
    input: z.strictObject({
      project_id,
      branch,
      against: z
        .string()
        .min(1)
        .max(100)
        .default('parent')
        .meta({ description: '`parent`, a branch or the ID of a snapshot.', examples: ['parent'] }),
      schema: z
        .boolean()
        .default(false)
        .meta({ description: 'Also compares the schemas.', examples: [true] }),
    }),
    async run(context, { branch: branch_ref, against, schema, ...input }) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref };
      return differenceOf(context.client, path, { against, schema }, { signal: context.signal });
    },
  }),
  tool({
    name: 'get_connection',
    description:
      'Returns the connection URLs of a branch, with passwords. Only for credentials that may view them, never on `main` for credentials limited to branches.',
    effect: READS,
    input: z.strictObject({ project_id, branch }),
    async run(context, input) {
      const path = { project_id: await projectOf(context, input.project_id), branch_ref: input.branch };
      return dataOf(context.client.api.GET(`${BRANCH}/credentials`, { params: { path } }));
    },
  }),
  proposeChange,
];
