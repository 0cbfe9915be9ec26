import { useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
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
import { DELETED_TEXT } from '../../strings/deleted-branches.ts';
import { dateTime, duration, secondsUntil } from '../../strings/format.ts';

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
      title={DELETED_TEXT.restoreTitle(branch.branch_name)}
      action={DELETED_TEXT.restore}
      isForm
      isReady={name !== ''}
      run={(onProgress) => {
        const params = { path: { project_id: projectId, deleted_branch_id: branch.id }, ...AT_ONCE };
        return gateway.create(RESTORE, { params, body: { branch_name: name } }, { onProgress });
      }}
      onDone={() => {
        announce(DELETED_TEXT.restored(name));
        refresh(deletedBranchesQuery(projectId), branchesQuery(projectId), projectQuery(projectId));
      }}
      onClose={onClose}
      command={COMMANDS.restoreBranch(projectId, branch.branch_name, name)}
    >
      <p>{DELETED_TEXT.restoreHint}</p>
      <Field
        label={DELETED_TEXT.name}
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
    title={DELETED_TEXT.purgeTitle(branch.branch_name)}
    action={DELETED_TEXT.purge}
    isDangerous
    typed={[branch.branch_name]}
    run={() =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/branches/{branch_ref}', {
          params: {
            ...inBranch(projectId, branch.id),
            query: { purge: 'true', confirm: branch.branch_name },
          },
        }),
      )
    }
    onDone={() => {
      announce(DELETED_TEXT.purged(branch.branch_name));
      refresh(deletedBranchesQuery(projectId));
    }}
    onClose={onClose}
    command={COMMANDS.purgeBranch(projectId, branch.id, branch.branch_name)}
  >
    <p>{DELETED_TEXT.purgeHint}</p>
  </ActionDialog>
);

function Left({ at }: { at: string | null }) {
  const now = useNow();
  return at === null ? <>–</> : <span title={dateTime(at)}>{duration(secondsUntil(at, now))}</span>;
}

type Act = { what: 'restore' | 'purge'; branch: Branch } | null;

export function DeletedBranchesPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/deleted-branches' });
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const deleted = useQuery(deletedBranchesQuery(projectId));
  const [act, setAct] = useState<Act>(null);
  const close = () => setAct(null);
  return (
    <Page title={TEXT.nav.deleted} about={DELETED_TEXT.about} width="narrow">
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      <Loaded query={deleted}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="trash" title={DELETED_TEXT.none}>
                <p>{DELETED_TEXT.noneHint}</p>
              </Empty>
            ) : (
              <ListTable columns={DELETED_TEXT.columns} hasActions={mayEdit}>
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
                            aria-label={DELETED_TEXT.restoreOf(branch.branch_name)}
                            onClick={() => setAct({ what: 'restore', branch })}
                          >
                            {DELETED_TEXT.restore}
                          </Button>
                          <Button
                            compact
                            look="bare"
                            icon="trash"
                            aria-label={DELETED_TEXT.purgeOf(branch.branch_name)}
                            title={DELETED_TEXT.purge}
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
      <CommandLine command={COMMANDS.listDeleted(projectId)} />
      {act?.what === 'restore' && <RestoreDialog projectId={projectId} branch={act.branch} onClose={close} />}
      {act?.what === 'purge' && <PurgeDialog projectId={projectId} branch={act.branch} onClose={close} />}
    </Page>
  );
}
