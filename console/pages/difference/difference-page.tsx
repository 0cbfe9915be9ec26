import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { plural } from '../../../shared/format.ts';
import { schemaProof, schemaScript } from '../../../shared/schema-proof.ts';
import { BranchName, snapshotLabel } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { refresh } from '../../data/query-client.ts';
import { branchesQuery, snapshotsQuery } from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { ChangedRowsCard } from './changed-rows.tsx';
import {
  cancelComparison,
  type Difference,
  differenceQuery,
  progressQuery,
  type Sides,
} from './differences.ts';

const SCHEMA_CHANGES = { added: 'Added', changed: 'Changed', dropped: 'Dropped' } as const;
const REASONS = {
  not_readable: 'the read-only login may not read it',
  row_security: 'it has row-level security',
  locked: 'it was locked',
  refused: 'PostgreSQL refused to read it',
} as Record<string, string>;
const METHODS = {
  wal_summary: 'Found by the blocks that were written since the two separated.',
  extents: 'Found by the blocks that no longer share their place on the disk.',
  full: 'All rows were compared.',
} as Record<string, string>;

const CHANGE_TONES = { added: 'good', changed: 'warn', dropped: 'bad' } as const;

/** What differs in the schemas, and statements for it. */
function SchemaDifference({ sides }: { sides: Sides }) {
  const difference = useQuery(differenceQuery(sides, 'schema'));
  return (
    <section className="card" aria-labelledby="schema">
      <header>
        <h2 id="schema">Schema</h2>
      </header>
      <Loaded query={difference}>
        {({ schema }) => {
          if (!schema) return null;
          const { changes, not_modelled, unproven_reason } = schema;
          const script = schemaScript(schema.statements);
          return (
            <>
              {changes.length === 0 ? (
                <Empty icon="check" title="The schemas are the same" />
              ) : (
                <ListTable columns={['Object', 'Kind', 'Change']} hasActions={false}>
                  {changes.map(({ kind, identity, change, detail }) => (
                    <tr key={`${kind} ${identity}`}>
                      <td>
                        <div className="mono">{identity}</div>
                        {detail !== undefined && <div className="small quiet">{detail}</div>}
                      </td>
                      <td>{kind.replaceAll('_', ' ')}</td>
                      <td>
                        <span className={`badge ${CHANGE_TONES[change]}`}>{SCHEMA_CHANGES[change]}</span>
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
              {(script || not_modelled.length > 0) && (
                <div className="body stack">
                  {script && (
                    <>
                      <h3>Statements that bring the other side to the schema of this branch</h3>
                      <Snippet code={script} label="Copy the statements" />
                      <p className="small quiet">
                        {schemaProof(unproven_reason)} Read them before you run them: they drop what was
                        renamed, and copy no rows.
                      </p>
                    </>
                  )}
                  {not_modelled.length > 0 && (
                    <Note tone="warn">
                      <p>Differences that the statements leave:</p>
                      <ul>
                        {not_modelled.map((text) => (
                          <li key={text} className="definitions">
                            {text}
                          </li>
                        ))}
                      </ul>
                    </Note>
                  )}
                </div>
              )}
            </>
          );
        }}
      </Loaded>
    </section>
  );
}

/** The schemas are compared when they are wanted, because a host does that for two pairs at a time. */
const PARTS = ['rows', 'schema'] as const;

type Rows = NonNullable<Difference['rows']>;

const fullName = ({ schema, name }: { schema: string; name: string }) =>
  schema === 'public' ? name : `${schema}.${name}`;

function NotCompared({ tables }: { tables: Rows['not_compared'] }) {
  if (tables.length === 0) return null;
  return (
    <Note tone="warn">
      <p>Not compared:</p>
      <ul>
        {tables.map((table) => (
          <li key={fullName(table)}>
            <code>{fullName(table)}</code>: {REASONS[table.reason]}
          </li>
        ))}
      </ul>
    </Note>
  );
}

/** A comparison that takes minutes says how far it is. */
function ComparisonProgress({ sides, isComparing }: { sides: Sides; isComparing: boolean }) {
  const { data: percent } = useQuery(progressQuery(sides));
  const cancelling = useMutation({ mutationFn: () => cancelComparison(sides) });
  if (!isComparing) return null;
  return (
    <div className="body stack">
      <p className="small quiet">
        Where the host cannot tell which blocks have changed, it reads every row of both sides. That takes
        about as long as reading both databases. To leave this page cancels it.
      </p>
      {percent !== null && percent !== undefined && (
        <div className="row">
          <label className="grow">
            Compared: {percent} % <progress value={percent} max={100} />
          </label>
          <Button compact icon="close" busy={cancelling.isPending} onClick={() => cancelling.mutate()}>
            Cancel
          </Button>
        </div>
      )}
      {cancelling.isError && <ErrorNote error={cancelling.error} />}
    </div>
  );
}

interface RowDifferencesProps {
  sides: Sides;
  onShow: (schema: string, table: string) => void;
}

/** How many rows of each table differ. */
function RowDifferences({ sides, onShow }: RowDifferencesProps) {
  const difference = useQuery(differenceQuery(sides, 'rows'));
  return (
    <section className="card" aria-labelledby="rows">
      <header>
        <h2 id="rows">Rows</h2>
        {difference.data?.method && <span className="quiet small">{METHODS[difference.data.method]}</span>}
      </header>
      <ComparisonProgress sides={sides} isComparing={difference.isFetching} />
      <Loaded query={difference}>
        {({ rows }) =>
          rows && (
            <>
              {rows.tables.length === 0 ? (
                <Empty icon="check" title="No row differs">
                  <p>{plural(rows.compared, 'table')} compared.</p>
                </Empty>
              ) : (
                <ListTable
                  columns={['Table', 'Added', 'Changed', 'Deleted']}
                  numbers={['Added', 'Changed', 'Deleted']}
                >
                  {rows.tables.map((table) => (
                    <tr key={fullName(table)}>
                      <td className="mono">{fullName(table)}</td>
                      <td className="number">{table.inserted}</td>
                      <td className="number">{table.updated}</td>
                      <td className="number">{table.deleted}</td>
                      <td className="actions">
                        <Button
                          compact
                          aria-label={`Show the rows of ${fullName(table)} that differ`}
                          onClick={() => onShow(table.schema, table.name)}
                        >
                          Show rows
                        </Button>
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
              {(rows.has_more || rows.not_compared.length > 0) && (
                <div className="body stack">
                  {rows.has_more && <p>More tables differ than are shown.</p>}
                  <NotCompared tables={rows.not_compared} />
                </div>
              )}
            </>
          )
        }
      </Loaded>
    </section>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/branches/$branch/difference')({
  validateSearch: texts('against', 'part', 'schema', 'table'),
  component: DifferencePage,
});

function DifferencePage() {
  const { projectId, branch } = Route.useParams();
  const search = Route.useSearch();
  const navigate = Route.useNavigate();
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const snapshots = useQuery(snapshotsQuery(projectId)).data ?? [];
  const record = branches.find(({ branch_name }) => branch_name === branch);
  const nameOf = (id: string | null) => branches.find((each) => each.id === id)?.branch_name;
  const parent = nameOf(record?.parent_branch_id ?? null);
  const others = [
    ...(parent === undefined ? [] : [['parent', `${parent} (its parent)`] as const]),
    ...branches
      .filter(({ branch_name, status }) => ![branch, parent].includes(branch_name) && status === 'active')
      .map(({ branch_name }) => [branch_name, branch_name] as const),
    ...snapshots.map((each) => [each.id, snapshotLabel(each, nameOf(each.branch_id))] as const),
  ];
  const against = others.find(([id]) => id === search.against)?.[0] ?? others[0]?.[0];
  const part = PARTS.find((name) => name === search.part) ?? 'rows';
  const choose = (change: Partial<Record<'against' | 'part' | 'schema' | 'table', string | undefined>>) =>
    navigate({ search: (before) => ({ ...before, ...change }) as never, replace: true });
  const sides = against === undefined ? null : { projectId, branch, against };
  return (
    <Page
      title={
        <>
          {TEXT.nav.difference} <BranchName name={branch} />
        </>
      }
      name={`Difference of ${branch}`}
      about="What this branch has changed, seen from the other side."
      actions={
        sides && (
          <Button
            icon="refresh"
            onClick={() => refresh({ queryKey: ['difference', projectId, branch, sides.against] })}
          >
            Reload
          </Button>
        )
      }
    >
      {sides === null ? (
        <Note>There is nothing to compare with: the branch has no parent, and the project nothing else.</Note>
      ) : (
        <>
          <div className="row form-row difference-sides">
            <div className="tabs" role="group" aria-label={TEXT.nav.difference}>
              {PARTS.map((name) => (
                <button
                  type="button"
                  key={name}
                  aria-pressed={name === part}
                  onClick={() => choose({ part: name })}
                >
                  {name === 'rows' ? 'Rows' : 'Schema'}
                </button>
              ))}
            </div>
            <SelectField
              label="Compare with"
              value={sides.against}
              onChange={({ target }) =>
                choose({ against: target.value, schema: undefined, table: undefined })
              }
            >
              {others.map(([id, label]) => (
                <option key={id} value={id}>
                  {label}
                </option>
              ))}
            </SelectField>
          </div>
          {part === 'rows' && (
            <RowDifferences sides={sides} onShow={(schema, table) => choose({ schema, table })} />
          )}
          {part === 'rows' && search.table !== undefined && (
            <ChangedRowsCard
              sides={sides}
              schema={search.schema ?? 'public'}
              table={search.table}
              onClose={() => choose({ schema: undefined, table: undefined })}
            />
          )}
          {part === 'schema' && <SchemaDifference sides={sides} />}
          <CommandLine command={(project) => COMMANDS.difference(project, branch, sides.against, part)} />
        </>
      )}
    </Page>
  );
}
