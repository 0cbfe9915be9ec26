import type { BranchgateClient, Schemas } from '../client/client.ts';
import { differenceOf } from '../client/difference.ts';
import { leaseBranch } from '../client/leased-branch.ts';
import { ResponseError } from '../client/response-error.ts';
import { schemaProof } from '../shared/schema-proof.ts';
import { sourceOf } from './branch.ts';
import type { Inputs } from './inputs.ts';
import { codeBlock, folded } from './markdown.ts';

type Difference = Schemas['Difference'];
type SchemaDifference = NonNullable<Difference['schema']>;

/** Of the statements; a comment has at most 65,536 characters. */
const STATEMENTS_MAX = 20_000;

/** The marks of a difference, which pages colour. */
const MARKS: Record<SchemaDifference['changes'][number]['change'], string> = {
  added: '+',
  changed: '!',
  dropped: '-',
};

/** What the branch has changed, seen from its parent. */
export async function changesOf(client: BranchgateClient, inputs: Inputs): Promise<Difference> {
  const { project, branch } = inputs;
  const path = { project_id: project, branch_ref: branch };
  const compare = (against: string) => differenceOf(client, path, { against, schema: true });
  try {
    return await compare('parent');
  } catch (error) {
    if (!(error instanceof ResponseError) || error.code !== 'NOT_FOUND') throw error;
  }
  // A trust that is limited to branches can clone `main`, and nothing else of it.
  const { signal } = new AbortController();
  const source = await sourceOf(client, inputs);
  const copy = await leaseBranch(
    client,
    {
      projectId: project,
      purpose: 'compare',
      allow: [],
      data: inputs.data,
      ...(source !== null && { sourceId: source }),
    },
    { signal, say: () => {} },
  );
  try {
    return await compare(copy.name);
  } finally {
    await copy.end();
  }
}

const counted = ({ inserted, updated, deleted }: { inserted: number; updated: number; deleted: number }) =>
  Object.entries({ inserted, updated, deleted })
    .filter(([, count]) => count > 0)
    .map(([kind, count]) => `${count} ${kind}`)
    .join(', ');

function rowsText({ tables, has_more, not_compared }: NonNullable<Difference['rows']>): string {
  const lines = [
    ...tables.map((table) => `${table.schema}.${table.name}: ${counted(table)}`),
    ...not_compared.map(({ schema, name, reason }) => `${schema}.${name}: not compared (${reason})`),
    ...(has_more ? ['More tables differ.'] : []),
  ];
  return lines.length === 0 ? 'No rows differ.' : `Rows:\n\n${codeBlock(lines)}`;
}

function schemaText({ changes, statements, not_modelled, unproven_reason }: SchemaDifference): string {
  if (changes.length === 0 && not_modelled.length === 0) return 'The schema is the same.';
  const lines = [
    ...changes.map(
      ({ change, kind, identity, detail }) =>
        `${MARKS[change]} ${kind} ${identity}${detail === undefined ? '' : ` (${detail})`}`,
    ),
    ...not_modelled.flatMap((sentence) => sentence.split('\n')).map((line) => `# ${line}`),
  ];
  const sql = statements.map((statement) => `${statement.replace(/;?\s*$/, '')};`).join('\n');
  const shown =
    sql.length > STATEMENTS_MAX
      ? 'The statements are too long for a comment.'
      : statements.length > 0 &&
        folded(
          'Statements',
          codeBlock(sql.split('\n'), 'sql', { lines: Number.POSITIVE_INFINITY, characters: STATEMENTS_MAX }),
        );
  const proof = statements.length > 0 && schemaProof(unproven_reason);
  return ['Schema:', codeBlock(lines, 'diff'), shown, proof].filter(Boolean).join('\n\n');
}

/** The part of the comment about what the branch has changed. Values of rows are never in it. */
export const changesText = ({ rows, schema }: Difference): string =>
  ['#### Changes', rows && rowsText(rows), schema && schemaText(schema)].filter(Boolean).join('\n\n');
