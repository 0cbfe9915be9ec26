import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { branchesQuery, inBranch } from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { BranchName } from '../../components/branch-status.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { Choice } from '../../components/field.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { CONNECT_TEXT } from '../../strings/connect.ts';
import { Reach } from './reach.tsx';
import { RotateDialog } from './rotate-dialog.tsx';
import { Snippets } from './snippets-view.tsx';

const ROLES = [
  ['default', CONNECT_TEXT.roles.default],
  ['owner', CONNECT_TEXT.roles.owner],
  ['read_only', CONNECT_TEXT.roles.read_only],
] as const;
type Role = (typeof ROLES)[number][0];

/** Each read is recorded in the audit log, so it happens only when a person asks for it. */
const useCredentials = (projectId: string, branch: string, role: Role, isWanted: boolean) =>
  useQuery({
    queryKey: ['credentials', projectId, branch, role],
    queryFn: () =>
      dataOf(
        api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials', {
          params: { ...inBranch(projectId, branch), query: role === 'default' ? {} : { role } },
        }),
      ),
    enabled: isWanted,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
    refetchOnWindowFocus: false,
  });

export function ConnectPage() {
  const { projectId, branch } = useParams({ from: '/inside/projects/$projectId/branches/$branch/connect' });
  const search = useSearch({ from: '/inside/projects/$projectId/branches/$branch/connect' });
  const navigate = useNavigate({ from: '/projects/$projectId/branches/$branch/connect' });
  const session = useStore(sessionStore);
  const maySee = session.state === 'signed_in' && mayChange(session.me);
  const role = ROLES.find(([name]) => name === search.role)?.[0] ?? 'default';
  const [isWanted, setWanted] = useState(false);
  const [isRotating, setRotating] = useState(false);
  const credentials = useCredentials(projectId, branch, role, isWanted);
  const record = useQuery(branchesQuery(projectId)).data?.find(({ branch_name }) => branch_name === branch);
  return (
    <Page
      title={
        <>
          {CONNECT_TEXT.title} <BranchName name={branch} />
        </>
      }
      name={CONNECT_TEXT.name(branch)}
      about={CONNECT_TEXT.about}
      actions={
        maySee && (
          <Button icon="refresh" onClick={() => setRotating(true)}>
            {CONNECT_TEXT.rotate}
          </Button>
        )
      }
    >
      {record?.status === 'expired' && <Note tone="warn">{CONNECT_TEXT.expired}</Note>}
      {!maySee && <Note>{CONNECT_TEXT.noView}</Note>}
      <Choice
        legend={CONNECT_TEXT.role}
        name="role"
        options={ROLES}
        value={role}
        onChange={(chosen) =>
          navigate({
            search: (before) => ({ ...before, role: chosen === 'default' ? undefined : chosen }) as never,
          })
        }
        hint={CONNECT_TEXT.roleHints[role]}
      />
      {maySee && !isWanted && (
        <div className="card">
          <Empty icon="lock" title={CONNECT_TEXT.locked}>
            <p>{CONNECT_TEXT.lockedHint}</p>
            <Button look="primary" icon="eye" onClick={() => setWanted(true)}>
              {CONNECT_TEXT.unlock}
            </Button>
          </Empty>
        </div>
      )}
      {isWanted && (
        <Loaded query={credentials}>
          {(data) => (
            <>
              <Reach
                projectId={projectId}
                branchId={data.branch_id}
                warning={data.warning}
                onChange={() => credentials.refetch()}
              />
              <Snippets
                credentials={data}
                snippet={search.snippet}
                onSnippet={(id) =>
                  navigate({ search: (before) => ({ ...before, snippet: id }), replace: true })
                }
              />
            </>
          )}
        </Loaded>
      )}
      <p className="small quiet">
        {CONNECT_TEXT.rulesHint}{' '}
        <Link to="/projects/$projectId/network-rules" params={{ projectId }}>
          {TEXT.nav.rules}
        </Link>
      </p>
      <CommandLine command={COMMANDS.connectionString(projectId, branch, role)} />
      {isRotating && (
        <RotateDialog
          projectId={projectId}
          branch={branch}
          onClose={() => setRotating(false)}
          onRotated={() => {
            setRotating(false);
            if (isWanted) credentials.refetch();
          }}
        />
      )}
    </Page>
  );
}
