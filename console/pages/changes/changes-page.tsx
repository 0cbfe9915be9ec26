import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { useState } from 'react';
import { type Change, endOfChange } from '../../../client/changes.ts';
import { dataOf } from '../../../client/response-error.ts';
import { forecastText } from '../../../shared/forecast-text.ts';
import { dateTime, duration, milliseconds, plural, secondsSince } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import {
  branchesQuery,
  type ChangeSummary,
  changeQuery,
  changesQuery,
  type Me,
} from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import '../jobs/jobs.css';

const CHANGES = '/api/v1/projects/{project_id}/changes';
const CHANGE = `${CHANGES}/{change_id}` as const;

const STATES: Record<Change['state'], { label: string; tone: string }> = {
  planned: { label: 'Planned', tone: '' },
  rehearsed: { label: 'Rehearsed', tone: 'accent' },
  approved: { label: 'Approved', tone: 'accent' },
  scheduled: { label: 'Scheduled', tone: 'accent' },
  applying: { label: 'Applying', tone: 'accent busy' },
  stopped: { label: 'Stopped', tone: 'bad' },
  failed: { label: 'Failed', tone: 'bad' },
  applied: { label: 'Applied', tone: 'good' },
  applied_with_differences: { label: 'Applied with differences', tone: 'bad' },
  undoing: { label: 'Going back', tone: 'accent busy' },
  undone: { label: 'Undone', tone: '' },
  closed: { label: 'Closed', tone: '' },
};

type Act = 'rehearse' | 'approve' | 'apply' | 'undo' | 'close';

/** Actions that a change offers, the most likely one first; the gateway decides. */
function actsOf(change: Change, isAuthor: boolean): readonly Act[] {
  const { state, stale, applied_count, safety_snapshot_id } = change;
  // Only a change of which nothing is applied can be planned again.
  const again: Act[] = applied_count === 0 ? ['rehearse'] : [];
  const undo: Act[] = safety_snapshot_id === null ? [] : ['undo'];
  switch (state) {
    case 'planned':
      return ['rehearse', 'close'];
    case 'rehearsed':
    case 'approved':
      return stale
        ? ['rehearse', 'close']
        : ['apply', ...(isAuthor ? [] : ['approve' as const]), 'rehearse', 'close'];
    case 'stopped':
    case 'failed':
      return [...(stale ? [] : ['apply' as const]), ...again, ...undo, 'close'];
    case 'scheduled':
      return ['close'];
    case 'applied':
    case 'applied_with_differences':
      return undo;
    default:
      return [];
  }
}

const LABELS: Record<Act, string> = {
  rehearse: 'Rehearse',
  approve: 'Approve',
  apply: 'Apply to main',
  undo: 'Undo',
  close: 'Close',
};

const paramsOf = ({ project_id, id }: Pick<Change, 'project_id' | 'id'>) => ({
  params: { path: { project_id, change_id: id } },
});

const errorText = ({ statement, message }: { statement: number; message: string | null }) =>
  `Statement ${statement}: ${message ?? 'PostgreSQL refused it.'}`;

function PlanDialog({ projectId, onClose }: { projectId: string; onClose: () => void }) {
  const branches = (useQuery(branchesQuery(projectId)).data ?? []).filter(
    ({ status, is_default }) => status === 'active' && !is_default,
  );
  const [from, setFrom] = useState('');
  const [sql, setSql] = useState('');
  return (
    <ActionDialog
      title="Plan a change of main"
      action="Plan change"
      isForm
      isReady={from !== '' || sql.trim() !== ''}
      run={() => {
        const body = { ...(from !== '' && { from }), ...(sql.trim() !== '' && { sql }) };
        return dataOf(api.POST(CHANGES, { params: { path: { project_id: projectId } }, body }));
      }}
      onDone={() => {
        announce('The change is planned.');
        refresh(changesQuery(projectId));
      }}
      onClose={onClose}
      command={(project) => COMMANDS.createChange(project, from, sql.trim() !== '')}
    >
      <p className="quiet">Nothing runs in main until the change is applied.</p>
      <SelectField label="From the schema of" value={from} onChange={({ target }) => setFrom(target.value)}>
        <option value="">no branch</option>
        {branches.map(({ id, branch_name }) => (
          <option key={id} value={branch_name}>
            {branch_name}
          </option>
        ))}
      </SelectField>
      <label className="field">
        <span>SQL, in place of the statements of the difference (optional)</span>
        <textarea
          className="mono"
          rows={6}
          value={sql}
          onChange={({ target }) => setSql(target.value)}
          spellCheck={false}
        />
      </label>
    </ActionDialog>
  );
}

function ActDialog({ act, change, onClose }: { act: Act; change: Change; onClose: () => void }) {
  const [budget, setBudget] = useState('2000');
  const [acceptsOutage, setAcceptsOutage] = useState(false);
  const [at, setAt] = useState('');
  const init = paramsOf(change);
  const confirm = 'main' as const;
  const runs: Record<Act, () => Promise<Change>> = {
    rehearse: () => dataOf(api.POST(`${CHANGE}/rehearse`, init)),
    approve: () => dataOf(api.POST(`${CHANGE}/approve`, init)),
    apply: () => {
      const due = at === '' ? {} : { at: new Date(at).toISOString() };
      const body = { confirm, budget_ms: Number(budget), accept_outage: acceptsOutage, ...due };
      return dataOf(api.POST(`${CHANGE}/apply`, { ...init, body }));
    },
    undo: () => dataOf(api.POST(`${CHANGE}/undo`, { ...init, body: { confirm } })),
    close: () => dataOf(api.DELETE(CHANGE, init)),
  };
  const isLong = act === 'rehearse' || act === 'apply' || act === 'undo';
  return (
    <ActionDialog
      title={`${LABELS[act]}: ${plural(change.statement_count, 'statement')}`}
      action={LABELS[act]}
      isDangerous={act === 'undo'}
      typed={act === 'apply' || act === 'undo' ? ['main'] : []}
      run={async (onProgress) => {
        const begun = await runs[act]();
        return isLong && begun.state !== 'scheduled' ? endOfChange(gateway, begun, { onProgress }) : begun;
      }}
      onDone={({ state }) => {
        announce(`The change is ${STATES[state].label.toLowerCase()}.`);
        refresh(changesQuery(change.project_id), changeQuery(change.project_id, change.id));
      }}
      onClose={onClose}
      command={(project) => COMMANDS.actOnChange(project, act === 'close' ? 'delete' : act, change.id)}
    >
      {act === 'apply' && (
        <>
          <p>
            A safety snapshot of main is taken first, for which its clients wait a moment. Then each statement
            runs, and gives up after half a second if its lock is not free.
          </p>
          <Field
            label="Longest time of a statement with a strong lock, in milliseconds"
            type="number"
            min={500}
            max={3_600_000}
            value={budget}
            onChange={({ target }) => setBudget(target.value)}
          />
          <Check
            label="Accept an outage: without that limit"
            checked={acceptsOutage}
            onChange={({ target }) => setAcceptsOutage(target.checked)}
          />
          <Field
            label="When, within 30 days (optional)"
            type="datetime-local"
            value={at}
            onChange={({ target }) => setAt(target.value)}
          />
        </>
      )}
      {act === 'undo' && (
        <p>
          Everything that was written to main since the change is lost. What main holds now is kept for a day.
        </p>
      )}
    </ActionDialog>
  );
}

function ChangeDetails({ change, me }: { change: Change; me: Me | null }) {
  const [act, setAct] = useState<Act | null>(null);
  const { project_id: projectId, statements, rehearsal, application, approvals } = change;
  const isAuthor = me !== null && change.created_by === me.id;
  const acts = me && mayChange(me) ? actsOf(change, isAuthor) : [];
  const counted = approvals.filter(({ counts }) => counts).length;
  const findings = statements.flatMap(({ position, findings: found }) =>
    found.map((finding) => ({ position, ...finding })),
  );
  return (
    <div className="body stack">
      {change.stale && <Note>The schema of main has changed since the plan. Rehearse the change again.</Note>}
      {change.main_changes.length > 0 && (
        <Note>
          main has changed since the branch was made, and the statements can undo that:{' '}
          {change.main_changes
            .map(({ kind, identity, change: what }) => `${kind} ${identity} ${what}`)
            .join(', ')}
          . Reset the branch first, or plan the change from SQL.
        </Note>
      )}
      {change.base === 'gone' && (
        <Note>
          What main was like when the branch was made is not known. The statements can undo later changes of
          main.
        </Note>
      )}
      {change.not_modelled.map((text) => (
        <Note key={text}>{text}</Note>
      ))}
      {application?.at && <Note>The change is due {dateTime(application.at)}.</Note>}
      {(change.state === 'stopped' || change.state === 'failed') && application?.reason && (
        <Note tone="bad">
          <p>
            {STATES[change.state].label}: {application.reason.replaceAll('_', ' ')}
          </p>
          {application.error && <p>{errorText(application.error)}</p>}
        </Note>
      )}
      {rehearsal?.error && <Note tone="bad">{errorText(rehearsal.error)}</Note>}
      <ListTable columns={['Statement', 'Lock', 'Took']} numbers={['Took']} hasActions={false}>
        {statements.map(({ position, sql, alone, leaves, rehearsed, applied }) => (
          <tr key={position}>
            <td>
              <code>{sql}</code> {applied && <span className="badge good">applied</span>}
              {alone && <p className="quiet">If interrupted: {leaves}</p>}
            </td>
            <td className="quiet">
              {rehearsed?.locks.map(({ schema, name, mode }) => `${mode} on ${schema}.${name}`).join(', ')}
            </td>
            <td className="number">{rehearsed ? `${Math.ceil(rehearsed.duration_ms)} ms` : '–'}</td>
          </tr>
        ))}
      </ListTable>
      {findings.length > 0 && (
        <ul>
          {findings.map(({ position, rule, message, instead }) => (
            <li key={`${position} ${rule}`}>
              Statement {position}: {message} Safer: {instead}.
            </li>
          ))}
        </ul>
      )}
      {rehearsal?.forecast.map((forecast) => (
        <p key={`${forecast.schema}.${forecast.name}`}>{forecastText(forecast)}</p>
      ))}
      {rehearsal && !rehearsal.error && (
        <p>
          Rehearsed {dateTime(rehearsal.rehearsed_at)}: {rehearsal.verdict}
          {rehearsal.dangers.map(
            ({ kind, schema, name }) => ` · ${kind.replaceAll('_', ' ')} of ${schema}.${name}`,
          )}
          {change.longest_lock_ms !== null &&
            ` · strong locks held for up to ${milliseconds(change.longest_lock_ms)}`}
        </p>
      )}
      {(change.approvals_required > 0 || approvals.length > 0) && (
        <p>
          {plural(change.approvals_required, 'approval')} needed
          {approvals.map(({ user_id, email, counts }) => (
            <span key={user_id}>
              {' '}
              · {email}
              {!counts && ' (of another plan)'}
            </span>
          ))}
          {isAuthor && counted < change.approvals_required && ' · ask another member, not its author'}
        </p>
      )}
      {acts.includes('undo') && change.safety_snapshot_id !== null && (
        <p>
          <Link
            to="/projects/$projectId/branches/$branch/difference"
            params={{ projectId, branch: 'main' }}
            search={{ against: change.safety_snapshot_id }}
          >
            What an undo would lose
          </Link>
        </p>
      )}
      <div className="row">
        {acts.map((each, at) => (
          <Button
            key={each}
            {...(at === 0 && each !== 'undo' && { look: 'primary' as const })}
            onClick={() => setAct(each)}
          >
            {LABELS[each]}
          </Button>
        ))}
      </div>
      {act && <ActDialog act={act} change={change} onClose={() => setAct(null)} />}
    </div>
  );
}

function ChangeItem({ change, me }: { change: ChangeSummary; me: Me | null }) {
  const now = useNow();
  const [isOpen, setIsOpen] = useState(false);
  const details = useQuery({ ...changeQuery(change.project_id, change.id), enabled: isOpen });
  const { label, tone } = STATES[change.state];
  return (
    <li className="card">
      <details open={isOpen} onToggle={({ currentTarget }) => setIsOpen(currentTarget.open)}>
        <summary>
          <span className={`badge ${tone}`}>{label}</span>
          <span className="job-kind">{plural(change.statement_count, 'statement')}</span>
          {change.source && <BranchName name={change.source.branch_name} />}
          <span className="quiet job-age" title={dateTime(change.created_at)}>
            {TEXT.states.ago(duration(secondsSince(change.created_at, now)))}
          </span>
        </summary>
        {isOpen && <Loaded query={details}>{(found) => <ChangeDetails change={found} me={me} />}</Loaded>}
      </details>
    </li>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/changes')({ component: ChangesPage });

function ChangesPage() {
  const { projectId } = Route.useParams();
  const session = useStore(sessionStore);
  const me = session.state === 'signed_in' ? session.me : null;
  const changes = useQuery(changesQuery(projectId));
  const [isPlanning, setIsPlanning] = useState(false);
  const mayEdit = me !== null && mayChange(me);
  return (
    <Page
      title={TEXT.nav.changes}
      about="A change of the schema of main is planned, rehearsed on a copy, approved, and applied without an outage."
      actions={
        mayEdit && (
          <Button look="primary" icon="plus" onClick={() => setIsPlanning(true)}>
            Plan change
          </Button>
        )
      }
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      <Loaded query={changes}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="compare" title="No changes yet">
                <p>Plan one from a branch whose schema main is to have, or from SQL.</p>
              </Empty>
            </div>
          ) : (
            <ul className="jobs">
              {all.map((change) => (
                <ChangeItem key={change.id} change={change} me={me} />
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={COMMANDS.listChanges} />
      {isPlanning && <PlanDialog projectId={projectId} onClose={() => setIsPlanning(false)} />}
    </Page>
  );
}
