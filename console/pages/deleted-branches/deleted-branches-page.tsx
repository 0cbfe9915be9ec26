import { useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime, duration, secondsUntil } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, Loaded, Note } from '../../components/feedback.tsx';
import { Field } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import {
  AT_ONCE,
  type Branch,
  branchesQuery,
  deletedBranchesQuery,
  inBranch,
  projectQuery,
} from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';

const RESTORE = '/api/v1/projects/{project_id}/branches/{deleted_branch_id}/restore';

interface DialogProps {
  projectId: string;
  branch: Branch;
  onClose: () => void;
}

function RestoreDialog({ projectId, branch, onClose }: DialogProps) {
  const [name, setName] = useState(branch.branch_name);
  return (
    <ActionDialog
      title={`Restore ${branch.branch_name}?`}
      action="Restore"
      isForm
      isReady={name !== ''}
      run={(onProgress) => {
        const params = { path: { project_id: projectId, deleted_branch_id: branch.id }, ...AT_ONCE };
        return gateway.create(RESTORE, { params, body: { branch_name: name } }, { onProgress });
      }}
      onDone={() => {
        announce(`${name} is back.`);
        refresh(deletedBranchesQuery(projectId), branchesQuery(projectId), projectQuery(projectId));
      }}
      onClose={onClose}
      command={(project) => COMMANDS.restoreBranch(project, branch.branch_name, name)}
    >
      <p>
        The branch counts against the limit of branches and the storage quota again. Its lifespan starts
        again.
      </p>
      <Field
        label="Name"
        className="mono"
        value={name}
        onChange={({ target }) => setName(target.value.toLowerCase())}
        autoComplete="off"
        spellCheck={false}
        data-first-focus
      />
    </ActionDialog>
  );
}

const PurgeDialog = ({ projectId, branch, onClose }: DialogProps) => (
  <ActionDialog
    title={`Drop ${branch.branch_name} for good?`}
    action="Drop now"
    isDangerous
    typed={[branch.branch_name]}
    run={() =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/branches/{branch_ref}', {
          params: {
            ...inBranch(projectId, branch.id),
            query: { purge: 'true' },
          },
        }),
      )
    }
    onDone={() => {
      announce(`${branch.branch_name} is being dropped.`);
      refresh(deletedBranchesQuery(projectId));
    }}
    onClose={onClose}
    command={COMMANDS.purgeBranch(projectId, branch.id)}
  >
    <p>Its database and everything in it is dropped now. It cannot be restored afterwards.</p>
  </ActionDialog>
);

function Left({ at }: { at: string | null }) {
  const now = useNow();
  return at === null ? <>–</> : <span title={dateTime(at)}>{duration(secondsUntil(at, now))}</span>;
}

type Act = { what: 'restore' | 'purge'; branch: Branch } | null;

export const Route = createFileRoute('/_inside/projects/$projectId/deleted-branches')({
  component: DeletedBranchesPage,
});

function DeletedBranchesPage() {
  const { projectId } = Route.useParams();
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const deleted = useQuery(deletedBranchesQuery(projectId));
  const [act, setAct] = useState<Act>(null);
  const close = () => setAct(null);
  return (
    <Page
      title={TEXT.nav.deleted}
      about="A deleted branch is kept for a while. It comes back with its content, passwords and rules."
      width="narrow"
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      <Loaded query={deleted}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="trash" title="Nothing to restore">
                <p>Branches that you delete appear here until their databases are dropped.</p>
              </Empty>
            ) : (
              <ListTable columns={['Branch', 'Created', 'Dropped in']} hasActions={mayEdit}>
                {all.map((branch) => (
                  <tr key={branch.id}>
                    <td className="mono">{branch.branch_name}</td>
                    <td className="quiet">{dateTime(branch.created_at)}</td>
                    <td className="quiet">
                      <Left at={branch.deletes_at} />
                    </td>
                    {mayEdit && (
                      <td className="actions">
                        <span className="row end">
                          <Button
                            compact
                            aria-label={`Restore ${branch.branch_name}`}
                            onClick={() => setAct({ what: 'restore', branch })}
                          >
                            Restore
                          </Button>
                          <Button
                            compact
                            look="bare"
                            icon="trash"
                            aria-label={`Drop ${branch.branch_name} now`}
                            title="Drop now"
                            onClick={() => setAct({ what: 'purge', branch })}
                          />
                        </span>
                      </td>
                    )}
                  </tr>
                ))}
              </ListTable>
            )}
          </div>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.listDeleted} />
      {act?.what === 'restore' && <RestoreDialog projectId={projectId} branch={act.branch} onClose={close} />}
      {act?.what === 'purge' && <PurgeDialog projectId={projectId} branch={act.branch} onClose={close} />}
    </Page>
  );
}
