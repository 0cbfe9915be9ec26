import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Choice } from '../../components/field.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { branchesQuery, inBranch, rulesQuery } from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { CONNECT_TEXT } from '../../strings/connect.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import { Snippets } from './snippets-view.tsx';

interface ReachProps {
  projectId: string;
  branchId: string;
  /** Of the gateway, if no rule lets the address of this browser connect; it names that address. */
  warning: string | undefined;
  onChange: () => void;
}

/** Answers "can I connect from here?", and adds the rule that is missing. */
export function Reach({ projectId, branchId, warning, onChange }: ReachProps) {
  const client = useQueryClient();
  const cidr = warning === undefined ? undefined : /"cidr":"([^"]+)"/.exec(warning)?.[1];
  const rule = useMutation({
    mutationFn: (network: string) =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: { cidr: network, branch_id: branchId, description: CONNECT_TEXT.ruleName },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? RULES_TEXT.added : RULES_TEXT.addedPending);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onChange();
    },
  });
  if (warning === undefined) return <Note tone="good">{CONNECT_TEXT.reachable}</Note>;
  return (
    <Note tone="warn">
      <div className="reach">
        <p className="grow">{CONNECT_TEXT.unreachable(cidr ?? '')}</p>
        {cidr !== undefined && (
          <Button look="primary" icon="shield" busy={rule.isPending} onClick={() => rule.mutate(cidr)}>
            {CONNECT_TEXT.allow(cidr)}
          </Button>
        )}
      </div>
      {rule.isError && <ErrorNote error={rule.error} />}
    </Note>
  );
}

const LOGINS = ['owner', 'read_write', 'read_only'] as const;
type LoginName = (typeof LOGINS)[number];

interface RotateProps {
  projectId: string;
  branch: string;
  onClose: () => void;
  onRotated: () => void;
}

/** New passwords. It says what stops working, and main needs its name typed. */
export function RotateDialog({ projectId, branch, onClose, onRotated }: RotateProps) {
  const [roles, setRoles] = useState<readonly LoginName[]>(LOGINS);
  return (
    <ActionDialog
      title={CONNECT_TEXT.rotateTitle(branch)}
      action={CONNECT_TEXT.rotate}
      isDangerous
      isReady={roles.length > 0}
      typed={branch === 'main' ? [branch] : []}
      run={() =>
        dataOf(
          api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate', {
            params: inBranch(projectId, branch),
            body: { roles: [...roles] },
          }),
        )
      }
      onDone={() => {
        announce(CONNECT_TEXT.rotated(branch));
        onRotated();
      }}
      onClose={onClose}
      // Without a role, the command would rotate all of them.
      {...(roles.length > 0 && { command: COMMANDS.rotate(projectId, branch, roles) })}
    >
      <fieldset className="field">
        <legend>{CONNECT_TEXT.rotateRoles}</legend>
        {LOGINS.map((role) => (
          <Check
            key={role}
            label={CONNECT_TEXT.logins[role]}
            checked={roles.includes(role)}
            onChange={({ target }) =>
              setRoles(LOGINS.filter((each) => (each === role ? target.checked : roles.includes(each))))
            }
          />
        ))}
      </fieldset>
      <Note tone="warn">{CONNECT_TEXT.rotateHint}</Note>
    </ActionDialog>
  );
}

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
