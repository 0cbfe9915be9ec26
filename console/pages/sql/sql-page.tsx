import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { lazy, Suspense, useCallback, useMemo, useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { tryStatements } from '../../../client/trial.ts';
import type { BranchRole } from '../../../shared/branch/login.ts';
import { dateTime, milliseconds, plural } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine, CopyButton } from '../../components/copy.tsx';
import { ErrorNote, Loading, Note } from '../../components/feedback.tsx';
import { Choice } from '../../components/field.tsx';
import { Page } from '../../components/page.tsx';
import { csvOf, saveFile } from '../../data/csv.ts';
import { api, gateway } from '../../data/gateway.ts';
import { branchesQuery, inBranch, tablesQuery } from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { Grid, type Position } from '../tables/grid.tsx';
import type { Row } from '../tables/staged.ts';
import { useDrafts } from './drafts.ts';
import { formatSql } from './format-sql.ts';
import { TrialReport } from './trial-report.tsx';
import './sql.css';

const SqlEditor = lazy(() => import('./sql-editor.tsx').then(({ SqlEditor }) => ({ default: SqlEditor })));

const ROLES = [
  ['read_only', 'Read only'],
  ['read_write', 'Read and write'],
  ['owner', 'Owner: change the schema'],
] as const satisfies readonly (readonly [BranchRole, string])[];

const labelOf = (role: unknown) => ROLES.find(([name]) => name === role)?.[1];

/** What the page can do about a refused statement, where the API says what it takes. */
function adviceOn(error: unknown): string | null {
  if (!(error instanceof ResponseError)) return null;
  const { required_role: role, hint, statement } = error.fields;
  const label = labelOf(role);
  const advice = label === undefined ? hint : `Choose “${label}”.`;
  const where = typeof statement === 'number' ? `This is statement ${statement}.` : undefined;
  return [where, advice].filter((text) => typeof text === 'string').join(' ') || null;
}

const FIRST_TEXT =
  "select table_schema, table_name, table_type\nfrom information_schema.tables\nwhere table_schema = 'public'\norder by 1, 2";

/** The beginning of a text, by which a person finds it. */
const titleOf = (text: string, at: number) => text.trim().slice(0, 24) || `Text ${at + 1}`;

const NONE: readonly [] = [];
const ignore = () => {};

export const Route = createFileRoute('/_inside/projects/$projectId/branches/$branch/sql')({
  component: SqlPage,
});

function SqlPage() {
  const { projectId, branch } = Route.useParams();
  const session = useStore(sessionStore);
  const tables = useQuery(tablesQuery(projectId, branch)).data ?? NONE;
  const record = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === branch);
  const tablesRead = useQuery(tablesQuery(projectId, branch)).isSuccess;
  const me = session.state === 'signed_in' ? session.me : undefined;
  const drafts = useDrafts([me?.id ?? '', projectId, branch], FIRST_TEXT);
  const { text } = drafts.active;
  const [formatted, setFormatted] = useState<{ text: string } | null>(null);
  const [chosen, setRole] = useState<BranchRole>('read_only');
  const isPerson = me !== undefined && mayChange(me) && record !== undefined;
  // The owner makes the first tables of a project without another program.
  const isFirst = isPerson && record.is_default && tablesRead && tables.length === 0;
  const mayWrite = isPerson && (!record.protected || isFirst);
  const roles = isFirst ? ROLES.filter(([name]) => name !== 'read_write') : ROLES;
  const role = mayWrite && roles.some(([name]) => name === chosen) ? chosen : 'read_only';
  const client = useQueryClient();
  const run = useMutation({
    mutationFn: async (sql: string) => {
      const began = performance.now();
      const result = await dataOf(
        api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/query', {
          params: inBranch(projectId, branch),
          body: { sql, role },
        }),
      );
      return { result, took: performance.now() - began };
    },
    onSuccess: () => {
      if (role !== 'read_only')
        client.invalidateQueries({ queryKey: tablesQuery(projectId, branch).queryKey });
    },
  });
  const trial = useMutation({
    mutationFn: (sql: string) =>
      tryStatements(
        gateway,
        { project_id: projectId, branch_ref: branch },
        // Nobody but its owner can change the schema, and a copy is nobody's.
        { sql, role: chosen === 'read_only' ? 'owner' : chosen },
      ),
  });
  const isBusy = run.isPending || trial.isPending;
  const start = () => {
    if (isBusy || text.trim() === '') return;
    drafts.remember(text);
    trial.reset();
    run.mutate(text);
  };
  const startTrial = () => {
    if (isBusy || text.trim() === '') return;
    drafts.remember(text);
    run.reset();
    trial.mutate(text);
  };
  const explain = () => {
    if (isBusy || text.trim() === '') return;
    trial.reset();
    run.mutate(`explain ${text}`);
  };
  const outcome = run.data?.result;
  return (
    <Page
      title={
        <>
          {TEXT.nav.sql} <BranchName name={branch} />
        </>
      }
      name={`SQL on ${branch}`}
      about="Runs statements, separated by semicolons, in one transaction: for at most 5 seconds, or 30 where they may change something."
      width="wide"
    >
      <section className="card sql" aria-label="Statements">
        <div className="row sql-tabs" role="group" aria-label="Texts">
          {drafts.tabs.map((tab, at) => (
            <span key={tab.id} className="row">
              <button
                type="button"
                className="sql-tab"
                aria-pressed={tab.id === drafts.active.id}
                title={tab.text}
                onClick={() => drafts.select(tab.id)}
              >
                {titleOf(tab.text, at)}
              </button>
              {drafts.tabs.length > 1 && (
                <Button
                  compact
                  look="bare"
                  icon="close"
                  aria-label={`Close ${titleOf(tab.text, at)}`}
                  onClick={() => drafts.close(tab.id)}
                />
              )}
            </span>
          ))}
          {drafts.mayOpen && (
            <Button compact look="bare" icon="plus" aria-label="New text" onClick={() => drafts.open()} />
          )}
        </div>
        <Suspense fallback={<Loading />}>
          <SqlEditor
            key={`${branch} ${drafts.active.id}`}
            tables={tables}
            initial={text}
            replacement={formatted}
            onChange={drafts.setText}
            onRun={start}
          />
        </Suspense>
        <footer className="row">
          <Button look="primary" busy={run.isPending} onClick={start}>
            Run <kbd>Ctrl ↵</kbd>
          </Button>
          <Button onClick={explain}>Explain</Button>
          <Button onClick={() => setFormatted({ text: formatSql(text) })}>Format</Button>
          {isPerson && (
            <Button busy={trial.isPending} onClick={startTrial}>
              Try on a copy
            </Button>
          )}
          {mayWrite ? (
            <Choice legend="Login" name="sql-role" options={roles} value={role} onChange={setRole} />
          ) : (
            <span className="quiet">
              Read only here. Change main over its connection URL, or try it on a branch.
            </span>
          )}
        </footer>
      </section>
      {isFirst && (
        <Note>
          main has no tables yet. Choose “{labelOf('owner')}” to create the first ones here; later changes of
          main take its connection URL or a branch.
        </Note>
      )}
      {drafts.history.length > 0 && (
        <details className="card sql-history">
          <summary>History: {plural(drafts.history.length, 'text')}</summary>
          <ul>
            {drafts.history.map(({ text: ran, at }) => (
              <li key={at} className="row">
                <time className="quiet">{dateTime(at)}</time>
                <code className="truncate grow">{ran}</code>
                <Button
                  compact
                  disabled={!drafts.mayOpen}
                  aria-label={`Open in a tab: ${ran.slice(0, 60)}`}
                  onClick={() => drafts.open(ran)}
                >
                  Open
                </Button>
              </li>
            ))}
          </ul>
        </details>
      )}
      {run.isError && <ErrorNote error={run.error} />}
      {adviceOn(run.error) && <Note tone="warn">{adviceOn(run.error)}</Note>}
      {trial.isError && <ErrorNote error={trial.error} />}
      {trial.data && <TrialReport trial={trial.data} />}
      {trial.data?.results.map((result, at) => (
        <ResultView
          // biome-ignore lint/suspicious/noArrayIndexKey: a trial replaces all of them
          key={`${trial.submittedAt} ${at}`}
          result={result}
          label={`Result ${at + 1}`}
          took={null}
        />
      ))}
      {outcome?.results && (
        <p className="quiet">
          {plural(outcome.results.length, 'statement')} in one transaction,{' '}
          {milliseconds(run.data?.took ?? 0)}
        </p>
      )}
      {outcome &&
        (outcome.results ?? [outcome]).map((result, at) => (
          <ResultView
            // Results of one run have no identity but their position.
            // biome-ignore lint/suspicious/noArrayIndexKey: a run replaces all of them
            key={`${run.submittedAt} ${at}`}
            result={result}
            label={outcome.results ? `Result ${at + 1}` : 'Result'}
            took={outcome.results ? null : (run.data?.took ?? 0)}
          />
        ))}
      <CommandLine command={(project) => COMMANDS.query(project, branch, text, role)} />
    </Page>
  );
}

interface ResultProps {
  result: Schemas['StatementResult'];
  label: string;
  /** Milliseconds; null where several results share them. */
  took: number | null;
}

function ResultView({ result, label, took }: ResultProps) {
  const [active, setActive] = useState<Position>({ row: 0, column: 0 });
  // Columns of a result can have the same name, so their position identifies them.
  const columns = useMemo(
    () => result.columns.map(({ name, type }, at) => ({ key: String(at), name, type })),
    [result],
  );
  const rows = useMemo(
    () => result.rows.map((cells) => Object.fromEntries(cells.map((cell, at) => [String(at), cell])) as Row),
    [result],
  );
  const cut = useMemo(() => new Set(result.truncated.map(({ row, column }) => `${row} ${column}`)), [result]);
  const rowAt = useCallback((index: number) => rows[index], [rows]);
  const asCsv = () =>
    csvOf(
      result.columns.map(({ name }) => name),
      result.rows,
    );
  const asJson = () =>
    JSON.stringify(
      result.rows.map((cells) => Object.fromEntries(result.columns.map(({ name }, at) => [name, cells[at]]))),
      null,
      2,
    );
  return (
    <section className="stack" aria-label={label}>
      <p role="status">
        <b>{`${result.command ?? ''} ${plural(result.row_count ?? rows.length, 'row')}`.trim()}</b>{' '}
        {took !== null && <span className="quiet">{milliseconds(took)}</span>}
      </p>
      {columns.length > 0 && (
        <p className="row">
          <CopyButton text={asCsv()} label={`Copy ${label} as CSV`} />
          <Button compact onClick={() => saveFile('result.csv', asCsv())}>
            CSV
          </Button>
          <Button compact onClick={() => saveFile('result.json', asJson(), 'application/json')}>
            JSON
          </Button>
        </p>
      )}
      {result.has_more && (
        <Note>Only the first {plural(rows.length, 'row')} are shown. Add a limit or conditions.</Note>
      )}
      {columns.length > 0 && (
        <div className="card sql-result">
          <Grid
            label={label}
            columns={columns.map(({ key, name, type }) => ({
              name: key,
              label: name,
              type,
              nullable: true,
              is_primary_key: false,
            }))}
            newRows={NONE}
            count={rows.length}
            rowAt={rowAt}
            isCut={(row, column) => cut.has(`${row} ${column}`)}
            stagedAt={() => undefined}
            active={active}
            onActive={setActive}
            onEdit={ignore}
            onKey={ignore}
            onVisible={ignore}
            order={null}
            editor={null}
          />
        </div>
      )}
    </section>
  );
}
