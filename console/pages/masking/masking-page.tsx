import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { columnOf, constantFor, tableOf } from '../../../shared/masking-names.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import {
  branchesQuery,
  maskingCheckQuery,
  maskingQuery,
  type Table,
  tablesQuery,
} from '../../data/resources.ts';
import { mayAdminister, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import './masking.css';

type Policy = Schemas['ComparedMaskingPolicy'];
type Rule = Policy['rules'][number];
type Suggestion = NonNullable<Policy['suggestions']>[number];

const FUNCTIONS: readonly (readonly [name: Rule['with'], label: string])[] = [
  ['null', 'NULL'],
  ['constant', 'one constant'],
  ['hash', 'hash'],
  ['email', 'e-mail address'],
  ['name', 'name of a person'],
  ['phone', 'phone number'],
  ['date_shift', 'date, some days off'],
  ['number_noise', 'number, some percent off'],
  ['text_redact', 'letters replaced by x'],
  ['json', 'parts of a document'],
  ['expression', 'SQL expression'],
];
/** Functions that need to know more. */
const REQUIRED_ARGS: Partial<Record<Rule['with'], (type: string) => object>> = {
  constant: (type) => ({ value: constantFor(type) }),
  json: () => ({ paths: ['$.email'] }),
  expression: () => ({ sql: '' }),
};

/** @param type of the column */
const newRule = (table: string, column: string, type: string, name: string): Rule => {
  const args = REQUIRED_ARGS[name as Rule['with']]?.(type);
  return { table, column, with: name, ...(args && { args }) } as Rule;
};

const isSame = (one: { table: string; column: string }, other: { table: string; column: string }) =>
  columnOf(one) === columnOf(other);

/** The key that accepts the first suggestion. */
const ACCEPT = 'a';
const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement && /^(?:INPUT|SELECT|TEXTAREA)$/.test(target.tagName);

type Draft = Pick<Policy, 'rules' | 'unlisted'>;
const MAIN = 'main';

/** What a draft began as. */
type Base = Draft & Pick<Policy, 'version' | 'etag'>;

const draftOf = ({ rules, unlisted }: Draft): Draft => ({ rules, unlisted });
const isEqual = (one: Draft, other: Draft) => JSON.stringify(draftOf(one)) === JSON.stringify(draftOf(other));

/** What is not covered in a branch, and the suggestions for it. */
function Uncovered({
  branch,
  policy,
  open,
  accept,
}: {
  branch: string;
  policy: Pick<Policy, 'problems' | 'suggestions'>;
  open: readonly Suggestion[];
  accept: ((suggestion: Suggestion) => void) | null;
}) {
  const [first] = open;
  useEffect(() => {
    if (!accept || !first) return;
    const onKey = (event: KeyboardEvent) => {
      const isOurs = event.key === ACCEPT && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (isOurs && !isTyping(event.target)) accept(first);
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, [accept, first]);
  if (policy.problems === null || policy.suggestions === null)
    return <Note>{branch} cannot be read now, so it is not known what the policy covers.</Note>;
  const others = policy.problems.filter(
    ({ table, column }) => !policy.suggestions?.some((one) => one.table === table && one.column === column),
  );
  if (open.length === 0 && others.length === 0)
    return (
      <Note tone="good">
        Every column of {branch} that looks personal has a rule. Comments, labels of enumerations, texts of
        functions, defaults and bounds of partitions are schema, and stay.
      </Note>
    );
  return (
    <section className="card padded stack" aria-labelledby="uncovered">
      <div>
        <h2 id="uncovered">Not covered</h2>
        {accept && first && (
          <p className="quiet">
            A suggestion that you accept is a draft until you save the policy. Press <kbd>{ACCEPT}</kbd> to
            accept the first one.
          </p>
        )}
      </div>
      {others.map(({ table, column, reason }) => (
        <Note key={`${table} ${column}`} tone="bad">
          <span className="mono">{column === null ? table : `${table}.${column}`}</span>: {reason}
        </Note>
      ))}
      <ul className="masking-suggestions">
        {open.map((suggestion) => (
          <li key={columnOf(suggestion)} className="row">
            <span className="grow">
              <span className="mono">{columnOf(suggestion)}</span>{' '}
              <span className="quiet small">{suggestion.reason}</span>
            </span>
            {accept && (
              <Button
                onClick={() => accept(suggestion)}
                aria-label={`Accept ${suggestion.with} for ${columnOf(suggestion)}`}
              >
                {suggestion.with}
              </Button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Rows of a table before and after, side by side. */
function Preview({ projectId, table, rules }: { projectId: string; table: string; rules: Rule[] | null }) {
  const preview = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/masking/preview', {
          params: { path: { project_id: projectId } },
          body: { table, limit: 5, ...(rules && { rules }) },
        }),
      ),
  });
  const { data } = preview;
  const cells = (values: readonly (string | null)[]) =>
    data?.columns.map(({ name, with: replaced }, n) => (
      <td key={name} className={replaced === null ? 'mono' : 'mono replaced'}>
        {values[n] ?? 'NULL'}
      </td>
    ));
  const sides = ['before', 'after'] as const;
  return (
    <div className="stack">
      <div>
        <Button busy={preview.isPending} icon="eye" onClick={() => preview.mutate()}>
          Preview
        </Button>
      </div>
      {preview.isError && <ErrorNote error={preview.error} />}
      {data?.problems.map(({ column, reason }) => (
        <Note key={column} tone="bad">
          {column} stays as it is: {reason}
        </Note>
      ))}
      {data?.rows.length === 0 && <Note>The table has no rows.</Note>}
      {data && data.rows.length > 0 && (
        <div className="masking-sides">
          {sides.map((side) => (
            <div key={side} className="table-scroll">
              <table className="table">
                <caption>{side === 'before' ? 'Before' : 'After'}</caption>
                <thead>
                  <tr>
                    {data.columns.map(({ name }) => (
                      <th key={name} scope="col">
                        {name}
                      </th>
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {data.rows.map((row, n) => (
                    // biome-ignore lint/suspicious/noArrayIndexKey: the rows of a preview have no key
                    <tr key={n}>{cells(row[side])}</tr>
                  ))}
                </tbody>
              </table>
            </div>
          ))}
        </div>
      )}
    </div>
  );
}

/** The arguments of a function, as JSON. */
function Arguments({ rule, onChange }: { rule: Rule; onChange: (rule: Rule) => void }) {
  const [text, setText] = useState(JSON.stringify('args' in rule ? (rule.args ?? {}) : {}));
  const [problem, setProblem] = useState<string | null>(null);
  return (
    <Field
      label={`Arguments of ${rule.with}`}
      className="mono"
      value={text}
      problem={problem ?? undefined}
      onChange={({ target }) => {
        setText(target.value);
        try {
          const args = JSON.parse(target.value);
          setProblem(null);
          onChange({ ...rule, args } as Rule);
        } catch {
          setProblem('This is not valid JSON.');
        }
      }}
    />
  );
}

interface ColumnsProps {
  table: Table;
  rules: readonly Rule[];
  isEditable: boolean;
  change: (column: string, rule: Rule | null) => void;
}

/** The columns of a table with what becomes of them. */
function Columns({ table, rules, isEditable, change }: ColumnsProps) {
  const name = `${table.schema}.${table.name}`;
  return (
    <fieldset className="masking-columns" disabled={!isEditable}>
      {table.columns.map(({ name: column, type }) => {
        const rule = rules.find((one) => isSame(one, { table: name, column }));
        return (
          <div key={column} className="row form-row">
            <SelectField
              label={`${column} (${type})`}
              value={rule?.with ?? ''}
              onChange={({ target }) =>
                change(column, target.value === '' ? null : newRule(name, column, type, target.value))
              }
            >
              <option value="">as it is</option>
              {FUNCTIONS.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </SelectField>
            {rule && 'args' in rule && (
              <Arguments key={rule.with} rule={rule} onChange={(changed) => change(column, changed)} />
            )}
          </div>
        );
      })}
    </fieldset>
  );
}

function PolicyEditor({
  projectId,
  policy,
  mayEdit,
}: {
  projectId: string;
  policy: Policy;
  mayEdit: boolean;
}) {
  const [base, setBase] = useState<Base>(policy);
  const [draft, setDraft] = useState(() => draftOf(policy));
  const begin = (from: Base) => {
    setBase(from);
    setDraft(draftOf(from));
  };
  const isChanged = !isEqual(draft, base);
  const isOvertaken = policy.version > base.version;
  // Nothing is lost that a person has chosen.
  if (isOvertaken && !isChanged) begin(policy);
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const [wantedBranch, setWantedBranch] = useState(MAIN);
  const others = branches.filter(({ branch_name, status }) => branch_name !== MAIN && status === 'active');
  const branch = others.some(({ branch_name }) => branch_name === wantedBranch) ? wantedBranch : MAIN;
  const isMain = branch === MAIN;
  const check = useQuery({ ...maskingCheckQuery(projectId, branch, policy), enabled: !isMain });
  const compared = isMain ? policy : check.data;
  const tables = useQuery(tablesQuery(projectId, MAIN));
  const [wanted, setWanted] = useState<string | null>(null);
  const kept = (tables.data ?? []).filter(({ kind }) => kind === 'table' || kind === 'partitioned_table');
  const nameOf = ({ schema, name }: Pick<Table, 'schema' | 'name'>) => `${schema}.${name}`;
  // What needs a rule comes first.
  const suggestions = compared?.suggestions ?? [];
  const first = suggestions[0]?.table;
  const named = (name: string | null | undefined) => kept.find((table) => nameOf(table) === name);
  const chosen = named(wanted) ?? named(first) ?? kept[0];
  const rulesOf = (table: Table) =>
    draft.rules.filter((rule) => {
      const { schema, name } = tableOf(rule);
      return schema === table.schema && name === table.name;
    });
  const open = suggestions.filter((one) => !draft.rules.some((rule) => isSame(rule, one)));
  const change = (table: string, column: string, rule: Rule | null) =>
    setDraft(({ rules, ...rest }) => ({
      ...rest,
      rules: [...rules.filter((one) => !isSame(one, { table, column })), ...(rule ? [rule] : [])],
    }));
  const checkOf = (name: string) => (project: string) => COMMANDS.checkMasking(project, name);
  const accept = (one: Suggestion) =>
    change(one.table, one.column, newRule(one.table, one.column, one.type, one.with));
  const save = useMutation({
    mutationFn: () =>
      dataOf(
        api.PUT('/api/v1/projects/{project_id}/masking', {
          params: { path: { project_id: projectId }, header: { 'if-match': base.etag } },
          body: draft,
        }),
      ),
    onSuccess: (saved) => {
      announce(`The policy has version ${saved.version}.`);
      begin(saved);
    },
    // After a refusal, too: somebody else has changed it.
    onSettled: () => refresh(maskingQuery(projectId)),
  });
  return (
    <>
      {compared && (
        <Uncovered branch={branch} policy={compared} open={open} accept={mayEdit ? accept : null} />
      )}
      {check.isError && !isMain && <ErrorNote error={check.error} />}
      <div className="card padded row form-row">
        {others.length > 0 && (
          <SelectField
            label="Compared with"
            value={branch}
            onChange={({ target }) => setWantedBranch(target.value)}
          >
            {[MAIN, ...others.map(({ branch_name }) => branch_name)].map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </SelectField>
        )}
        <SelectField
          label="Columns without a rule"
          value={draft.unlisted}
          disabled={!mayEdit}
          onChange={({ target }) => setDraft({ ...draft, unlisted: target.value as Draft['unlisted'] })}
        >
          <option value="refuse_likely_personal">make nothing if one looks personal</option>
          <option value="keep">stay as they are</option>
        </SelectField>
        {mayEdit && (
          <Button look="primary" busy={save.isPending} disabled={!isChanged} onClick={() => save.mutate()}>
            Save policy
          </Button>
        )}
      </div>
      {save.isError && <ErrorNote error={save.error} />}
      {isOvertaken && isChanged && (
        <Note tone="bad">
          Somebody else has made version {policy.version} of the policy. Your changes are of version{' '}
          {base.version} and cannot be saved.{' '}
          <Button
            onClick={() => {
              save.reset();
              begin(policy);
            }}
          >
            Discard my changes
          </Button>
        </Note>
      )}
      {tables.isError && <ErrorNote error={tables.error} />}
      {tables.data && !chosen && <Empty icon="table" title="No tables yet" />}
      {chosen && (
        <div className="card masking-tables">
          <nav aria-label={TEXT.nav.tables}>
            {[...Map.groupBy(kept, ({ schema }) => schema)].map(([schema, list]) => (
              <details key={schema} open>
                <summary className="mono">{schema}</summary>
                <ul>
                  {list.map((table) => (
                    <li key={table.name}>
                      <button
                        type="button"
                        aria-current={table === chosen ? 'true' : undefined}
                        onClick={() => setWanted(nameOf(table))}
                      >
                        <span className="grow truncate">{table.name}</span>
                        {rulesOf(table).length > 0 && <span className="quiet">{rulesOf(table).length}</span>}
                      </button>
                    </li>
                  ))}
                </ul>
              </details>
            ))}
          </nav>
          <section className="stack" aria-labelledby="masked-table">
            <h2 id="masked-table" className="mono">
              {nameOf(chosen)}
            </h2>
            <Columns
              key={nameOf(chosen)}
              table={chosen}
              rules={rulesOf(chosen)}
              isEditable={mayEdit}
              change={(column, rule) => change(nameOf(chosen), column, rule)}
            />
            <Preview
              key={`preview of ${nameOf(chosen)}`}
              projectId={projectId}
              table={nameOf(chosen)}
              rules={mayEdit ? draft.rules : null}
            />
          </section>
        </div>
      )}
      <CommandLine command={isMain ? COMMANDS.suggestMasking : checkOf(branch)} />
    </>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/masking')({ component: MaskingPage });

function MaskingPage() {
  const { projectId } = Route.useParams();
  const policy = useQuery(maskingQuery(projectId));
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayAdminister(session.me);
  return (
    <Page
      title={TEXT.nav.masking}
      about="How values are replaced in masked branches and snapshots. Nothing changes in main."
    >
      {!mayEdit && <Note>Owners and admins change the policy.</Note>}
      <Loaded query={policy}>
        {(data) => <PolicyEditor key={projectId} projectId={projectId} policy={data} mayEdit={mayEdit} />}
      </Loaded>
    </Page>
  );
}
